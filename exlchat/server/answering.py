"""One request for answers, from its body to its last byte. A client that has left is noticed at any point of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from exlchat.api.asked import Asked, FindSpeaker, Speaker
from exlchat.api.errors import ApiError, told_error
from exlchat.api.fields import MOST_BYTES, Fields, read_body
from exlchat.llm.events import Event, Finished, PrefillProgress, Scored, TextDelta
from exlchat.llm.port import Failed
from exlchat.llm.request import RequestError
from exlchat.server.desk import Desk
from exlchat.server.record import Record
from exlchat.server.sending import SSE, send_body, send_head, send_json
from exlchat.server.ticket import Ticket, Told

SILENCE_SECONDS = 5.0
"""After so long without a word a comment is sent: proxies and clients take a silent stream to be dead."""
MERGED_SECONDS = 0.008
"""What comes of an answer within so long after a piece was sent goes in one with the next: nobody sees the difference,
and each piece wakes this thread, for which the one that computes waits."""
STALLED_SECONDS = 60.0
"""A client that takes nothing for so long is taken to have left: its answer has a row that others wait for."""
_SLOWEST_BODY_SECONDS = 60.0
"""A body that has not come by then is not waited for: a connection costs memory, and half a body says nothing."""
_QUICKLY_READ = 32 * 1024
"""A body of so many bytes is read as JSON sooner than a thread is asked to."""
_FAR_TOO_LARGE = 4 * MOST_BYTES
"""What is above a body's bound is read and thrown away up to here, because many clients read no reply before."""

Ask = Callable[[Fields, FindSpeaker], Asked]


class Answering:
    """An endpoint.

    Args:
        ask: makes of a body what is asked of the engine.
    """

    def __init__(self, desk: Desk, ask: Ask) -> None:
        self._desk = desk
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        data = await whole_body(receive)
        # `receive` says at once when the client leaves; a question in between would miss it while nothing is sent.
        gone = asyncio.ensure_future(_left(receive))
        work = asyncio.ensure_future(_Request(self._desk, self._ask, scope["record"], send).carry_out(data))
        try:
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            scope["record"].left = not work.done()
        finally:
            for task in (gone, work):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def whole_body(receive: Receive) -> bytes:
    """Raises `ApiError`: it is too large or too slow, or the client left before its end."""
    try:
        async with asyncio.timeout(_SLOWEST_BODY_SECONDS):
            return await _body(receive)
    except TimeoutError:
        raise ApiError(408, f"the body has not come in {_SLOWEST_BODY_SECONDS:g} s; send it again") from None


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the body ends before its end")
        size += len(message.get("body", b""))
        if size <= MOST_BYTES:
            pieces.append(message.get("body", b""))
        if not message.get("more_body") or size > _FAR_TOO_LARGE:
            break
    if size > MOST_BYTES:
        raise ApiError(413, f"the body is larger than {MOST_BYTES // 10**6} MB; send less", code="body_too_large")
    return b"".join(pieces)


async def _left(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


class _Request:
    def __init__(self, desk: Desk, ask: Ask, record: Record, send: Send) -> None:
        self._desk, self._ask, self._record, self._send = desk, ask, record, send
        self._begun = False
        self._failure: Exception | None = None
        self._sent = 0.0
        """When a piece was sent last."""
        self._came: Counter[int] = Counter()
        """Tokens of each answer."""
        self._grew: dict[int, float] = {}
        """When the last of them came."""

    async def carry_out(self, data: bytes) -> None:
        try:
            await self._answer(data)
        except TimeoutError:
            # The connection is closed behind a reply that does not come to its end.
            self._record.trouble = f"the client has read nothing for {STALLED_SECONDS:g} s"
        except Exception as error:
            told = told_error(error)
            if not isinstance(error, ApiError | RequestError):
                self._record.trouble = told.message
            if not self._begun:
                await send_json(self._send, told.status, told.body(), told.headers())
                return
            # The head has said 200; clients read an error in the place of a chunk.
            self._record.trouble = told.message
            await send_body(self._send, f"data: {json.dumps(told.body())}\n\n", more=False)

    async def _answer(self, data: bytes) -> None:
        desk = self._desk
        with desk.ticket(self._record) as ticket:
            quick = len(data) <= _QUICKLY_READ
            fields = read_body(data) if quick else await desk.in_thread(lambda: read_body(data))
            name, stream = fields.text("model"), fields.flag("stream")
            async with contextlib.AsyncExitStack() as stack:
                speaker = await self._entered(stack.enter_async_context(desk.speaker(name)), stream=stream)
                asked = await desk.in_thread(lambda: self._ask(fields, lambda _: speaker))
                self._record.model, self._record.ignored = speaker.name, asked.ignored
                desk.allow(asked.ignored)
                desk.book(ticket, len(asked.requests))
                least = self._record.least_rank
                requests = [replace(one, rank=max(one.rank, least)) for one in asked.requests]
                self._record.rank = min((one.rank for one in requests), default=least)
                await desk.in_thread(lambda: ticket.submit(speaker.model.engine, requests))
                await self._tell(asked, ticket)

    async def _entered(self, entering: Coroutine[Any, Any, Speaker], *, stream: bool) -> Speaker:
        """The speaker, for whom a model may have to be loaded: who waits for a stream is told so meanwhile."""
        task = asyncio.ensure_future(entering)
        try:
            while not (await asyncio.wait((task,), timeout=SILENCE_SECONDS))[0]:
                if stream:
                    await self._say(self._comment(), {})
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return task.result()

    async def _tell(self, asked: Asked, ticket: Ticket) -> None:
        headers = told_ignored(asked.ignored)
        if not asked.stream:
            while not asked.reply.ended:
                self._taken(asked, await ticket.events(SILENCE_SECONDS))
                self._raise_failure()
            await send_json(self._send, 200, asked.reply.whole(), headers)
            return
        # The head goes with the first word, when it is certain that the engine has taken the request.
        chunks = list(asked.reply.first())
        while not asked.reply.ended:
            # The first word waits for nothing.
            soonest = self._sent + MERGED_SECONDS if self._came else 0.0
            told = await ticket.events(SILENCE_SECONDS, not_before=soonest)
            came = self._taken(asked, told)
            chunks += came
            if told:
                if came or self._failure is None:
                    await self._say("".join(f"data: {chunk}\n\n" for chunk in chunks), headers)
                chunks = []
                self._raise_failure()
            else:
                await self._say(self._comment(), headers)
        chunks += [*asked.reply.last(), "[DONE]"]
        await send_body(self._send, "".join(f"data: {chunk}\n\n" for chunk in chunks), more=False)

    def _taken(self, asked: Asked, told: list[Told]) -> list[str]:
        """The chunks that events are told by, up to the first that a request has failed of."""
        chunks: list[str] = []
        for index, event in told:
            if isinstance(event, Failed):
                self._failure = event.error
                break
            self._note(index, event)
            chunks += asked.reply.feed(index, event)
        return chunks

    def _raise_failure(self) -> None:
        """What came before it has been sent."""
        if self._failure is not None:
            raise self._failure

    async def _say(self, text: str, headers: Mapping[str, str]) -> None:
        """Sends more of a stream; its head before the first of it."""
        if not self._begun:
            self._begun = True
            await send_head(self._send, 200, SSE, headers)
        if text:
            async with asyncio.timeout(STALLED_SECONDS):
                await send_body(self._send, text, more=True)
            self._sent = time.monotonic()

    def _note(self, index: int, event: Event | Scored) -> None:
        record = self._record
        if isinstance(event, PrefillProgress):
            record.read_tokens, record.prompt_tokens = event.done, event.total
        elif isinstance(event, TextDelta):
            self._came[index] += len(event.token_ids)
            self._desk.metrics.grown(self._grew.get(index))
            self._grew[index] = time.monotonic()
        elif isinstance(event, Finished):
            record.prompt_tokens = record.read_tokens = event.stats.prompt_tokens
            self._came[index] = event.stats.new_tokens
            self._desk.metrics.answered(event.stats)
        record.new_tokens = self._came.total()

    def _comment(self) -> str:
        load = self._desk.loading
        if load is not None:
            return f": loading the model, {100 * load.done // max(load.total, 1)} %\n\n"
        record = self._record
        if not record.prompt_tokens:
            return ": waiting\n\n"
        if record.read_tokens < record.prompt_tokens:
            return f": reading {record.read_tokens}/{record.prompt_tokens}\n\n"
        return ": thinking of a word\n\n"


def told_ignored(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names fields which mean nothing here."""
    names = [name for name in ignored if name.isascii() and name.isprintable()]
    return {"x-exlchat-ignored": ", ".join(names)} if names else {}

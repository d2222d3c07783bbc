"""What all requests share: the model that answers, who waits for it, and whether the server is being stopped."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from exlchat.api.asked import Speaker
from exlchat.api.chat_model import ChatModel
from exlchat.api.errors import ApiError, bad, unknown_fields
from exlchat.api.head import fingerprint
from exlchat.api.models import model_entry, model_list, tabby_model
from exlchat.api.said import SaidBefore
from exlchat.api.voice import Voice
from exlchat.llm.info import LoadProgress, ModelInfo
from exlchat.llm.port import Engine, HasCache
from exlchat.server.floor import Lender
from exlchat.server.house import House, Name, parsed
from exlchat.server.metrics import Metrics
from exlchat.server.record import Record
from exlchat.server.ticket import Ticket
from exlchat.untrusted.text import one_line

_T = TypeVar("_T")

MOST_WAITING = 256
"""Answers at a time, of all requests together; more are told to come again."""
_THREADS = 4
"""For templates, tokenizers and grammars, which must not hold up the loop."""
_STILL_SECONDS = 10.0
"""After so long without an event the engine is taken to hang."""
_NO_MODEL = "no model is loaded here; ask again when one is"
_STOPPING = "this server is being stopped; ask again when it is there"


class Desk:
    """One for a server.

    Args:
        house: which models there are, and who speaks.
        floor: lends them to requests.
        templates: the folder of the user's own prompt formats; `None` knows none.
        any_name: whether the first model answers to names that there are not.
        strict_fields: whether a field that means nothing here is a mistake.
        unload_after: seconds without a request after which the model gives its memory back; `None` never.
    """

    def __init__(
        self,
        house: House,
        floor: Lender,
        *,
        templates: Path | None = None,
        any_name: bool = False,
        strict_fields: bool = False,
        unload_after: float | None = None,
    ) -> None:
        self._house, self._floor = house, floor
        self._templates, self._any_name, self._unload_after = templates, any_name, unload_after
        self._strict_fields = strict_fields
        self._said = SaidBefore()
        self._chat: ChatModel | None = None
        self._infos: dict[str, ModelInfo] = {}
        self._created = int(time.time())
        self._pool = ThreadPoolExecutor(_THREADS, "exlchat-request")
        self._tickets: dict[Ticket, Record] = {}
        self._ticked = time.monotonic()
        self.metrics = Metrics()
        self.stopping = False
        """Whether nothing new is begun."""

    @property
    def running(self) -> int:
        """Requests whose answers are on their way or wait for it."""
        return len(self._tickets)

    @property
    def waiting(self) -> int:
        """Those of them of which the engine has said nothing yet."""
        return sum(not one.begun for one in self._tickets)

    @property
    def answers(self) -> int:
        """Of all these requests that have not ended: one client may ask for many at once."""
        return sum(one.left for one in self._tickets)

    @property
    def name(self) -> str:
        """Of the model that is loaded, or was last."""
        return self._floor.model

    @property
    def loading(self) -> LoadProgress | None:
        """How far a load is, while there is one."""
        return self._floor.loading

    def resolved(self, name: str) -> Name:
        """Who is called so; "" is whoever was there first. May take a while. Raises `ApiError`."""
        models = self._house.models()
        if not models:
            raise ApiError(503, _NO_MODEL, code="no_model", retry_after=5)
        found = parsed(name, models, self._house.variants)
        if found is None and self._any_name:
            return Name(models[0], "")
        if found is None:
            shown, some = one_line(name, 80), one_line(", ".join(models), 300)
            raise ApiError(
                404, f"there is no model {shown!r} here; this server has {some}", param="model", code="model_not_found"
            )
        return found

    @asynccontextmanager
    async def speaker(self, name: str) -> AsyncIterator[Speaker]:
        """Inside, the model that is called so is loaded, and who speaks with it is there.

        Raises:
            ApiError: there is none.
            ModelError: it cannot be loaded.
        """
        found, voice = await self.in_thread(lambda: self._who(name))
        async with self._floor.using(found.model) as engine:
            if self._chat is None or self._chat.engine is not engine:
                self._chat = ChatModel(engine, self._templates, self._said)
            yield Speaker(str(found), self._chat, voice, fingerprint(engine.info, _cache_kind(engine)))

    def _who(self, name: str) -> tuple[Name, Voice]:
        found = self.resolved(name)
        return found, self._house.voice(found.model, found.variant)

    def models(self) -> dict[str, Any]:
        """The reply of `/v1/models`: all that may be asked for. May take a while."""
        variants = ("", *self._house.variants())
        names = [Name(model, one) for model in self._house.models() for one in variants]
        return model_list([self._entry(one) for one in names])

    def entry(self, name: str) -> dict[str, Any]:
        """The reply of `/v1/models/NAME`. May take a while. Raises `ApiError`."""
        return self._entry(self.resolved(name))

    def tabby_entry(self) -> dict[str, Any]:
        """The reply of TabbyAPI's `/v1/model`."""
        model = self.resolved("").model
        info = self._info(model)
        if info is None:
            raise ApiError(503, _NO_MODEL, code="no_model", retry_after=5)
        return tabby_model(model, info, self._created, _cache_kind(self._floor.engine))

    def measured(self) -> str:
        """For `/metrics`."""
        waiting = Counter(record.rank for ticket, record in list(self._tickets.items()) if not ticket.begun)
        running = self.running - waiting.total()
        return self.metrics.text(self._floor.engine, running=running, waiting=waiting, answers=self.answers)

    def allow(self, ignored: Sequence[str]) -> None:
        """Raises `ApiError` where fields that mean nothing here are a mistake."""
        if self._strict_fields and ignored:
            raise unknown_fields(ignored)

    async def watch(self) -> None:
        """Unloads what nobody uses; for as long as the server is there."""
        while self._unload_after is not None:
            await asyncio.sleep(min(1.0, self._unload_after / 4))
            if self._floor.idle_for > self._unload_after:
                await self._floor.unload()

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    @contextmanager
    def ticket(self, record: Record) -> Iterator[Ticket]:
        """For the answers of one request, which are cancelled behind it, however it ends. Raises `ApiError`."""
        if self.stopping:
            raise ApiError(503, _STOPPING, code="stopping", retry_after=10)
        self._require_room(1)
        ticket = Ticket(self._tick)
        self._tickets[ticket] = record
        try:
            yield ticket
        finally:
            del self._tickets[ticket]
            ticket.cancel()

    def book(self, ticket: Ticket, answers: int) -> None:
        """Takes room for all that a request asks for, before the engine is asked. Raises `ApiError`: there is none."""
        if answers > MOST_WAITING:
            raise bad(
                None,
                f"the request asks for {answers:,} answers, and {MOST_WAITING} is most at a time; send fewer prompts, "
                "or a smaller n",
            )
        self._require_room(answers - ticket.left)
        record = self._tickets[ticket]
        if record.most_answers is not None:
            others = [one for one, of in self._tickets.items() if of.key == record.key and one is not ticket]
            if sum(one.left for one in others) + answers > record.most_answers:
                raise ApiError(
                    429,
                    f"the key {record.key} has at most {record.most_answers} answers at a time; ask again later",
                    code="rate_limit_exceeded",
                    retry_after=5,
                )
        ticket.left = answers

    def _require_room(self, answers: int) -> None:
        if self.answers + answers > MOST_WAITING:
            raise ApiError(
                429,
                f"{self.answers} answers are asked for already, and {MOST_WAITING} is most; ask again later",
                code="rate_limit_exceeded",
                retry_after=5,
            )

    def still_for(self) -> float:
        """Seconds since the engine last said something to somebody who waits; 0 while it has nothing to do."""
        return time.monotonic() - self._ticked if any(one.expects for one in self._tickets) else 0.0

    @property
    def hangs(self) -> bool:
        return self.still_for() > _STILL_SECONDS

    def under_way(self) -> list[Record]:
        """What is noted so far of the requests that are answered, or wait for it, oldest first. From any thread."""
        return [copy(record) for record in list(self._tickets.values())]

    def end(self, request_id: str) -> None:
        """Whoever runs the server has enough of a request: its client is told. From any thread."""
        for ticket, record in list(self._tickets.items()):
            if record.id == request_id:
                ticket.fail(ApiError(503, "whoever runs this server has ended this request", code="ended"))

    def give_up(self) -> None:
        """Ends all answers; their clients are told why."""
        for ticket in tuple(self._tickets):
            ticket.fail(ApiError(503, _STOPPING, code="stopping", retry_after=10))

    def close(self) -> None:
        """Behind the last request. What is on its way to the disk gets there."""
        self._floor.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _entry(self, name: Name) -> dict[str, Any]:
        loaded = name.model == self._floor.model and self._floor.engine is not None
        return model_entry(str(name), self._info(name.model), self._created, loaded=loaded, bare=not name.variant)

    def _info(self, model: str) -> ModelInfo | None:
        """Of a model that is loaded, or was."""
        engine = self._floor.engine
        if engine is not None:
            self._infos[self._floor.model] = engine.info
        return self._infos.get(model)

    def _tick(self) -> None:
        self._ticked = time.monotonic()


def _cache_kind(engine: Engine | None) -> str:
    return engine.cache_report().kind if isinstance(engine, HasCache) else ""

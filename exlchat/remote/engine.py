"""The engine that asks a server: an `llm.port.Engine`, and several answers as several requests."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from exlchat.llm.events import (
    Event,
    Finished,
    FinishReason,
    GenerationStats,
    OneOfSeveral,
    PlaceChances,
    PrefillProgress,
    Scored,
    TextDelta,
)
from exlchat.llm.info import ModelInfo
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Capabilities, Failed, Handle, Running
from exlchat.llm.repetition_watch import RepetitionWatch
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest
from exlchat.llm.thought_splitter import several_told_apart, told_apart
from exlchat.remote.address import Address, Remote, RemoteError
from exlchat.remote.answer import Chunk, ChunkReader, Usage, asked
from exlchat.remote.http import EventStream, Http
from exlchat.remote.lacks import NO_SCORES, check, lacks_of
from exlchat.remote.server import Server, look_at
from exlchat.remote.spread import Spread, look_at_all
from exlchat.remote.stops import StopWatch

_MOST_SEED = 2**31 - 1
_CHARACTERS_A_TOKEN = 64
"""More than any token has; of servers that do not tell ids an answer is bounded by its characters."""
_MOST_EMPTY = 10_000
"""Events in a row; some servers send a few while they think."""
_OPENING, _CLOSING = "<think>\n", "\n</think>\n\n"


def connect(remote: Remote) -> RemoteEngine:
    """Look at a server and be ready to ask it.

    Raises:
        RemoteError: nobody answers, it is no such server, or the key would be seen on its way.
    """
    addresses = (remote.address, *remote.others)
    for address in addresses:
        if remote.key and address.scheme == "http" and not address.is_loopback:
            raise RemoteError(f"{address.shown}: the key would be sent unencrypted; give an https address, or a tunnel")
    servers = [Http(address, remote.key) for address in addresses]
    if len(servers) == 1:
        return RemoteEngine(look_at(remote, servers[0]), Spread(servers), addresses)
    return RemoteEngine(*look_at_all(remote, servers), addresses)


class RemoteEngine:
    """A model of a server. Every request has a connection of its own, and closing it is what ends the answer there.

    Args:
        addresses: where it was looked for: it is called by all of them, whoever answered, so that a run that goes on
            later knows it again.
    """

    def __init__(self, server: Server, spread: Spread, addresses: Sequence[Address]) -> None:
        self.server = server
        self._spread = spread
        place = ", ".join(one.place for one in addresses)
        shown = ", ".join(one.shown for one in addresses)
        self._lacks = lacks_of(server, shown)
        self._info = ModelInfo(
            # Of a file its name.
            name=server.model.rpartition("/")[2] if server.model.startswith("/") else server.model,
            path=shown,
            architecture="",
            quantization="",
            parameters=server.parameters,
            vocab_size=server.vocabulary.size,
            max_seq_len=server.context,
            device=f"{server.kind} at {place}",
            dtype="",
            bos_token=server.bos_token,
            eos_token=server.eos_token,
            stop_ids=tuple(server.vocabulary.encode(server.eos_token)) if server.eos_token else (),
            special_tokens=server.marks,
            chat_template=server.chat_template,
            added_tokens=server.marks,
            named_tokens={"bos_token": server.bos_token, "eos_token": server.eos_token},
            remote=f"{server.kind} · {server.level}",
            notices=server.notices,
            lacks=self._lacks,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            **{name: name not in self._lacks for name in ("alternatives", "banned", "begun", "guidance_ids", "heal")},
            draft_model=False,
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self.server.vocabulary.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.server.vocabulary.decode(ids, special=special)

    def check(self, request: GenerationRequest) -> None:
        check(self._lacks, request)
        self.capabilities.check(request)
        asked(self.server, replace(request, prompt_ids=(), begun=0), 0)

    def generate(self, request: GenerationRequest) -> Running[Event]:
        self._check(request)
        answer = _Answer(self.server, self._spread, request)
        return Running(told_apart(answer.events(), request.thoughts), answer.cancel)

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        if not 1 <= len(seeds) <= MOST_ANSWERS:
            raise RequestError(f"{len(seeds)} answers; there can be 1 to {MOST_ANSWERS}")
        self._check(request)
        several = _SideBySide([_Answer(self.server, self._spread, replace(request, seed=seed)) for seed in seeds])
        return Running(several_told_apart(several.events(), request.thoughts, len(seeds)), several.cancel)

    def submit(
        self, request: GenerationRequest | ScoreRequest, sink: Callable[[Event | Scored | Failed], None]
    ) -> Handle:
        if isinstance(request, ScoreRequest):
            raise RequestError(NO_SCORES)
        running = self.generate(request)

        def tell() -> None:
            try:
                for event in running:
                    sink(event)
            except Exception as error:
                sink(Failed(error))

        threading.Thread(target=tell, name="remote answer", daemon=True).start()
        return running

    def close(self) -> None:
        """Nothing is written here in the background."""

    def _check(self, request: GenerationRequest) -> None:
        check(self._lacks, request)
        self.capabilities.check(request)
        if not request.prompt_ids:
            raise RequestError("the prompt is empty; it needs at least one token")
        if len(request.prompt_ids) > self.server.context:
            raise RequestError(
                f"the prompt has {len(request.prompt_ids):,} tokens and the server reads {self.server.context:,}; "
                "shorten it"
            )


@dataclass(slots=True)
class _Said:
    """What has come of an answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    chances: list[PlaceChances] = field(default_factory=list)
    tokens: int = 0
    first: float | None = None
    usage: Usage = field(default_factory=Usage)
    reason: FinishReason | None = None


class _Answer:
    """One request to the server, asked when its first event is read."""

    def __init__(self, server: Server, spread: Spread, request: GenerationRequest) -> None:
        self._server = server
        self._request = request
        self._seed = request.seed if request.seed is not None else secrets.randbelow(_MOST_SEED)
        path, body = asked(server, request, self._seed % (_MOST_SEED + 1))
        self._stream: EventStream = spread.stream(path, body, request.prompt_ids)
        self._wanted_to_end = threading.Event()
        self._stop_ids = {one for one in request.stop if isinstance(one, int)}
        self._stops = StopWatch([one for one in request.stop if isinstance(one, str)])
        self._repeated = RepetitionWatch() if request.stop_repeating else None
        self._thinking = False
        room = server.context - len(request.prompt_ids)
        self._most = max(room if request.max_new_tokens is None else min(room, request.max_new_tokens), 0)

    def events(self) -> Iterator[Event]:
        began = time.monotonic()
        total = len(self._request.prompt_ids)
        said, empty = _Said(), 0
        reader = ChunkReader(self._server, self._request, lambda: self._stream.place)
        ended = False
        yield PrefillProgress(0, total, 0)
        try:
            for event in self._stream:
                chunk = reader.read(event)
                if ended:
                    # Behind the end stands what it took, or nothing that is of the answer.
                    said.usage = chunk.usage or said.usage
                    break
                if chunk.progress is not None and said.first is None:
                    yield chunk.progress
                told = self._take(chunk, said)
                empty = empty + 1 if told is None else 0
                if empty > _MOST_EMPTY:
                    raise RemoteError(f"{self._stream.place}: sends events that say nothing, without end")
                if told is not None:
                    yield told
                ended = said.reason is not None
                if ended and chunk.reason is None:
                    # Known here before the server knows.
                    self._stream.cancel()
                    break
        finally:
            # Also where nobody reads on.
            self._stream.cancel()
        if said.reason is None and self._wanted_to_end.is_set():
            said.reason = "cancelled"
        rest = self._shown(self._closing_mark(), said) + self._last(said)
        if rest:
            yield TextDelta(rest)
        if said.reason is None:
            raise RemoteError(f"{self._stream.place}: breaks off before the answer has ended; what has come is kept")
        yield Finished(said.reason, self._stats(said, began, total), said.text, tuple(said.ids), tuple(said.chances))

    def cancel(self) -> None:
        """From any thread."""
        self._wanted_to_end.set()
        self._stream.cancel()

    def _take(self, chunk: Chunk, said: _Said) -> TextDelta | None:
        said.usage = chunk.usage or said.usage
        ids = self._own(chunk.ids, said)
        text = ""
        if chunk.thought:
            text += "" if self._thinking else _OPENING
            self._thinking = True
            text += chunk.thought
        if chunk.text:
            text += self._closing_mark() + chunk.text
        if (text or ids) and said.first is None:
            said.first = time.monotonic()
        said.tokens += len(ids) or (1 if text else 0)
        said.ids += ids
        chances = chunk.chances[: len(ids)] if self._request.alternatives else ()
        said.chances += chances
        shown = self._shown(text, said)
        if said.reason is None:
            said.reason = self._why_end(text, ids, said) or chunk.reason
        return TextDelta(shown, ids, tuple(chances)) if shown or ids else None

    def _own(self, ids: tuple[int, ...], said: _Said) -> tuple[int, ...]:
        """Those before a stop token, which is not of the answer."""
        known = self._stop_ids | set(self._server.vocabulary.encode(self._server.eos_token)) if ids else set()
        for number, one in enumerate(ids):
            if one in known:
                if one in self._stop_ids:
                    said.reason = "stop_token"
                return ids[:number]
        return ids

    def _why_end(self, text: str, ids: tuple[int, ...], said: _Said) -> FinishReason | None:
        if self._stops.stopped:
            return "stop_string"
        if self._repeated is not None:
            for one in ids or self._server.vocabulary.encode(text) if text else ids:
                self._repeated.push(one)
            if self._repeated.stuck:
                return "repeating"
        over = len(said.ids) > self._most or len(said.text) > _CHARACTERS_A_TOKEN * (self._most + 16)
        return "max_new_tokens" if over else None

    def _closing_mark(self) -> str:
        closing = _CLOSING if self._thinking else ""
        self._thinking = False
        return closing

    def _shown(self, text: str, said: _Said) -> str:
        shown = self._stops.feed(text) if text else ""
        said.text += shown
        return shown

    def _last(self, said: _Said) -> str:
        shown = self._stops.finish()
        said.text += shown
        return shown

    def _stats(self, said: _Said, began: float, total: int) -> GenerationStats:
        now = time.monotonic()
        first = said.first or now
        usage = said.usage
        return GenerationStats(
            prompt_tokens=usage.prompt or total,
            cached_tokens=min(usage.cached or 0, usage.prompt or total),
            new_tokens=usage.new or said.tokens,
            time_to_first_token=first - began,
            prefill_seconds=first - began,
            decode_seconds=now - first,
            seed=self._seed,
        )


class _SideBySide:
    """Events of answers, each read in a thread of its own. The first that fails ends all."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        self._answers = answers
        self._told: queue.Queue[tuple[int, Event | Exception]] = queue.Queue(maxsize=256)
        self._gone = threading.Event()

    def cancel(self) -> None:
        """From any thread."""
        for one in self._answers:
            one.cancel()

    def events(self) -> Iterator[PrefillProgress | OneOfSeveral]:
        try:
            for pair in enumerate(self._answers):
                threading.Thread(target=self._read, args=pair, name="remote answer", daemon=True).start()
            going = len(self._answers)
            while going:
                index, event = self._told.get()
                if isinstance(event, Exception):
                    raise event
                going -= isinstance(event, Finished)
                if not isinstance(event, PrefillProgress):
                    yield OneOfSeveral(index, event)
                elif index == 0:
                    yield event
        finally:
            self._gone.set()
            self.cancel()

    def _read(self, index: int, answer: _Answer) -> None:
        try:
            for event in answer.events():
                self._put(index, event)
        except Exception as error:
            self._put(index, error)

    def _put(self, index: int, event: Event | Exception) -> None:
        while not self._gone.is_set():
            try:
                self._told.put((index, event), timeout=0.1)
            except queue.Full:
                continue
            return

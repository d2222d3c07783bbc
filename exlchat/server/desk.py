"""What all requests share: the model that answers, who waits for it, and whether the server is being stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from exlchat.api.asked import Speaker
from exlchat.api.errors import ApiError
from exlchat.api.models import model_entry, model_list, tabby_model
from exlchat.llm.port import HasCache
from exlchat.server.metrics import Metrics
from exlchat.server.ticket import Ticket
from exlchat.untrusted.text import one_line

_T = TypeVar("_T")

MOST_WAITING = 256
"""Requests at a time; more are told to come again."""
_THREADS = 4
"""For templates, tokenizers and grammars, which must not hold up the loop."""
_STILL_SECONDS = 10.0
"""After so long without an event the engine is taken to hang."""
_STOPPING = "this server is being stopped; ask again when it is there"


class Desk:
    """One for a server.

    Args:
        speaker: the model that is loaded, under its own name.
        any_name: whether it answers to names that there are not.
    """

    def __init__(self, speaker: Speaker, *, any_name: bool = False) -> None:
        self._speaker = speaker
        self._any_name = any_name
        self._created = int(time.time())
        self._pool = ThreadPoolExecutor(_THREADS, "exlchat-request")
        self._tickets: set[Ticket] = set()
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

    def find(self, name: str) -> Speaker:
        """Who is called so; "" is whoever is loaded. Raises `ApiError`."""
        speaker = self._speaker
        if name in ("", speaker.name) or self._any_name:
            return speaker
        shown = one_line(name, 80)
        raise ApiError(
            404,
            f"there is no model {shown!r} here; this server has {speaker.name}",
            param="model",
            code="model_not_found",
        )

    def models(self) -> dict[str, Any]:
        """The reply of `/v1/models`."""
        return model_list([self.entry(self._speaker)])

    def entry(self, speaker: Speaker) -> dict[str, Any]:
        return model_entry(speaker.name, speaker.model.engine.info, self._created)

    def tabby_entry(self) -> dict[str, Any]:
        """The reply of TabbyAPI's `/v1/model`."""
        engine = self._speaker.model.engine
        kind = engine.cache_report().kind if isinstance(engine, HasCache) else ""
        return tabby_model(self._speaker.name, engine.info, self._created, kind)

    def measured(self) -> str:
        """For `/metrics`."""
        waiting = self.waiting
        return self.metrics.text(self._speaker.model.engine, running=self.running - waiting, waiting=waiting)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """For the answers of one request, which are cancelled behind it, however it ends. Raises `ApiError`."""
        if self.stopping:
            raise ApiError(503, _STOPPING, code="stopping", retry_after=10)
        if len(self._tickets) >= MOST_WAITING:
            raise ApiError(
                429,
                f"{MOST_WAITING} requests wait already; ask again later",
                code="rate_limit_exceeded",
                retry_after=5,
            )
        if not self._tickets:
            self._ticked = time.monotonic()
        ticket = Ticket(self._tick)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            ticket.cancel()

    def still_for(self) -> float:
        """Seconds since the engine last said something to somebody who waits; 0 while it has nothing to do."""
        return time.monotonic() - self._ticked if self._tickets else 0.0

    @property
    def hangs(self) -> bool:
        return self.still_for() > _STILL_SECONDS

    def give_up(self) -> None:
        """Ends all answers; their clients are told why."""
        for ticket in tuple(self._tickets):
            ticket.fail(ApiError(503, _STOPPING, code="stopping", retry_after=10))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tick(self) -> None:
        self._ticked = time.monotonic()

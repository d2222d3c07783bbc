"""Answers that one client waits for: their events brought from the engine's thread to the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from exlchat.llm.events import Event, Finished, Scored
from exlchat.llm.port import CanRest, Engine, Failed, Handle
from exlchat.llm.request import GenerationRequest, ScoreRequest

Told = tuple[int, Event | Scored | Failed]
"""Of which request, and what of it."""
MOST_HELD = 256
"""Events of one request that wait to be sent; then its answers stand still."""
_Sink = Callable[[Event | Scored | Failed], None]


class Ticket:
    """Made on the loop. `submit` runs in another thread, `cancel` in any; both may meet in any order.

    Args:
        ticked: called in the engine's thread at each event.
    """

    def __init__(self, ticked: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ticked = ticked
        self._there, self._ended = asyncio.Event(), asyncio.Event()
        self._told: deque[Told] = deque()
        self._waking = False
        self._lock = threading.Lock()
        self._handles: list[Handle] = []
        self._cancelled = self._resting = False
        self._open = 0
        self.left = 1
        """Answers that were asked for and have not ended; one at least while the ticket is held."""
        self.begun = False
        """Whether the engine has said anything."""

    @property
    def expects(self) -> bool:
        """Whether the engine has something to say: nobody waits for a model, and the client takes what comes."""
        return self._open > 0 and not (self._resting or self._cancelled)

    def submit(self, engine: Engine, requests: Sequence[GenerationRequest | ScoreRequest]) -> None:
        """Begins them, unless they are cancelled already. Raises `RequestError`; none is left running then."""
        try:
            for index, request in enumerate(requests):
                with self._lock:
                    self._open += 1
                self._ticked()
                self._hold(engine.submit(request, self._sink(index)))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """They end within a token; harmless afterwards."""
        with self._lock:
            self._cancelled = True
            handles = tuple(self._handles)
        for handle in handles:
            handle.cancel()

    def fail(self, error: Exception) -> None:
        """Nobody waits for the engine any more, and the client is told why."""
        self.cancel()
        self._tell((0, Failed(error)))

    async def events(self, seconds: float, *, not_before: float = 0.0) -> list[Told]:
        """What has come since, at least one; nothing after so many seconds of silence.

        Args:
            not_before: when it may be told, by the monotonic clock.
        """
        early = not_before - time.monotonic()
        if early > 0:
            # What comes meanwhile wakes nobody, but an end does.
            self._waking = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(early):
                    await self._ended.wait()
            self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._told:
                    self._there.clear()
                    # Whoever tells something from here on wakes us; what was told before is seen below.
                    self._waking = False
                    if not self._told:
                        await self._there.wait()
        found = [self._told.popleft() for _ in range(len(self._told))]
        self._go_on()
        return found

    def _hold(self, handle: Handle) -> None:
        with self._lock:
            self._handles.append(handle)
            cancelled = self._cancelled
        if cancelled:
            handle.cancel()

    def _sink(self, index: int) -> _Sink:
        def sink(event: Event | Scored | Failed) -> None:
            self.begun = True
            self._ticked()
            if isinstance(event, Finished | Scored | Failed):
                with self._lock:
                    self._open -= 1
                    self.left = max(self.left - 1, 1)
            self._tell((index, event))
            if len(self._told) > MOST_HELD:
                self._rest()

        return sink

    def _rest(self) -> None:
        """The client reads more slowly than the model writes: only its own answers wait for it."""
        with self._lock:
            # The loop takes what there is before it asks for the lock: it sees this, or has left nothing to wait for.
            if len(self._told) > MOST_HELD and not self._resting:
                self._resting = True
                for handle in self._handles:
                    if isinstance(handle, CanRest):
                        handle.rest()

    def _go_on(self) -> None:
        with self._lock:
            if self._resting:
                self._resting = False
                self._ticked()
                for handle in self._handles:
                    if isinstance(handle, CanRest):
                        handle.go_on()

    def _tell(self, told: Told) -> None:
        self._told.append(told)
        # The loop is gone where the server has been stopped in the middle of an answer.
        with contextlib.suppress(RuntimeError):
            if isinstance(told[1], Finished | Scored | Failed):
                self._loop.call_soon_threadsafe(self._ended.set)
            if not self._waking:
                self._waking = True
                self._loop.call_soon_threadsafe(self._there.set)

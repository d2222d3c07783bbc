"""The one model that is loaded: others take its place when they are asked for, and nobody's answer is cut for that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Engine, HoldsMemory


class Lender(Protocol):
    """Lends a model to requests, one model at a time. Belongs to the loop."""

    @property
    def engine(self) -> Engine | None:
        """The one that is loaded."""

    @property
    def model(self) -> str:
        """The name of the one that is loaded, or was last."""

    @property
    def loading(self) -> LoadProgress | None:
        """How far a load is, while there is one."""

    @property
    def idle_for(self) -> float:
        """Seconds for which nobody has used the model that is loaded; 0 while somebody does."""

    def using(self, model: str) -> contextlib.AbstractAsyncContextManager[Engine]:
        """Inside, this model is loaded and stays so. Raises `ModelError`: it cannot be loaded."""

    async def unload(self) -> None:
        """Gives the memory of the model back, unless somebody uses it; who asks next has it loaded again."""

    def close(self) -> None:
        """Brings to the disk what is on its way there."""


class Floor:
    """The `Lender` of a server that loads its models itself. Whoever asks first is served first; another model waits
    until all that are answered before it have ended.

    Args:
        engine: the one that is loaded.
        model: its name.
        load: loads another by its name, in a thread. Raises `ModelError`.
    """

    def __init__(
        self, engine: Engine, model: str, load: Callable[[str, Callable[[LoadProgress], None]], Engine]
    ) -> None:
        self.engine: Engine | None = engine
        self.model = model
        self._load = load
        self._turn = asyncio.Lock()
        self._empty = asyncio.Condition()
        self._users = 0
        self._change: asyncio.Task[None] | None = None
        self.left_at = time.monotonic()
        """When the last one left."""
        self.loading: LoadProgress | None = None

    @property
    def idle_for(self) -> float:
        return 0.0 if self._users or self.engine is None else time.monotonic() - self.left_at

    @contextlib.asynccontextmanager
    async def using(self, model: str) -> AsyncIterator[Engine]:
        async with self._turn:
            # What was begun for a client that has left comes to its end first, whatever that is.
            with contextlib.suppress(ModelError):
                await self._settled()
            if self.engine is None or self.model != model:
                await self._nobody()
                self._change = asyncio.ensure_future(self._swap(model))
                await self._settled()
            assert self.engine is not None
            self._users += 1
            engine = self.engine
        try:
            yield engine
        finally:
            self._users -= 1
            self.left_at = time.monotonic()
            async with self._empty:
                self._empty.notify_all()

    async def unload(self) -> None:
        if self._turn.locked():
            return
        async with self._turn:
            with contextlib.suppress(ModelError):
                await self._settled()
            if not self._users and self.engine is not None:
                self._change = asyncio.ensure_future(self._drop())
                await self._settled()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()

    async def _settled(self) -> None:
        """A change goes on though whoever wanted it has left."""
        change = self._change
        if change is not None:
            try:
                await asyncio.shield(change)
            finally:
                if change.done() and self._change is change:
                    self._change = None

    async def _nobody(self) -> None:
        async with self._empty:
            await self._empty.wait_for(lambda: not self._users)

    async def _drop(self) -> None:
        engine = self.engine
        self.engine = None
        if engine is not None and isinstance(engine, HoldsMemory):
            await asyncio.to_thread(engine.unload)

    async def _swap(self, model: str) -> None:
        def show(progress: LoadProgress) -> None:
            self.loading = progress

        await self._drop()
        try:
            self.engine = await asyncio.to_thread(self._load, model, show)
            self.model = model
            self.left_at = time.monotonic()
        finally:
            self.loading = None

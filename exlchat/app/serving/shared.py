"""The model of the chat for other programs, too: a server inside of it. Whoever sits in front of it goes first."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.library.shelf import shown_name
from exlchat.app.runtime.jobs import Loan
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.runtime.engine_jobs import EngineJobs
    from exlchat.llm.info import LoadProgress
    from exlchat.llm.port import Engine
    from exlchat.server.desk import Desk
    from exlchat.server.record import Record
    from exlchat.server.running import Running

HOST, PORT = "127.0.0.1", 8765
_REMEMBERED = 50
"""Requests that have ended."""
_END_SECONDS = 3.0
"""For clients to be told that their answers end, and the socket to be closed."""


class SharedServer:
    """Belongs to the thread of the sessions.

    Args:
        engines: lends its model to requests.
        shelf: how models are spoken to where a request does not say.
    """

    def __init__(self, engines: EngineJobs, shelf: Shelf) -> None:
        self._engines, self._shelf = engines, shelf
        self._running: Running | None = None
        self._desk: Desk | None = None
        self._thread: threading.Thread | None = None
        self._ended: deque[Record] = deque(maxlen=_REMEMBERED)
        self.place = ""
        """The address for clients; empty while it is off."""

    def start(self, host: str = HOST, port: int = PORT) -> None:
        """Let programs ask the model that is loaded, and those that come after it.

        Raises:
            NotPossibleError: it cannot be, in a line.
        """
        if self.place:
            raise NotPossibleError(f"other programs reach this model at {self.place} already; /serve off ends that")
        for package in ("starlette", "uvicorn"):
            if importlib.util.find_spec(package) is None:
                raise NotPossibleError(f"/serve needs {package}; install it with: pip install 'exlchat[serve]'")
        engine = self._engines.engine
        if engine is not None and (reason := engine.info.lacks.get("serving")):
            raise NotPossibleError(reason)
        # Most starts serve nobody.
        from exlchat.app.serving.house import UsersHouse
        from exlchat.server.application import application
        from exlchat.server.desk import Desk
        from exlchat.server.guard import Rules
        from exlchat.server.keys import Keys
        from exlchat.server.running import Address, BindError, Running, listen

        self.wait_for_end(_END_SECONDS)
        address, keys = Address(host, port), Keys(paths.folders().config / "serve-keys.json")
        if not address.local and not keys.all():
            raise NotPossibleError(
                f"others reach {host}, so clients need a key, and there is none; make one with exlchat serve "
                "--add-key NAME"
            )
        try:
            bound = listen(address)
        except BindError as error:
            raise NotPossibleError(str(error).partition(";")[0] + "; give another PORT") from None
        rules = Rules(hosts=(host.lower(),), origins=(), keys=keys, always_keys=not address.local)
        self._desk = Desk(
            UsersHouse(self._shelf, self._offered), _Lent(self._engines), templates=paths.folders().templates
        )
        app = application(self._desk, rules, self._ended.append)
        running = self._running = Running(app, self._desk, bound, drain=0.0, ready=lambda: None)
        self._thread = threading.Thread(target=running.run, name="exlchat-serve", daemon=True)
        self._thread.start()
        name, number = bound.getsockname()[:2]
        self.place = f"http://{f'[{name}]' if ':' in name else name}:{number}/v1"

    def stop(self) -> None:
        """Nobody asks any more; answers on their way end."""
        if self._running is not None:
            self._running.stop()
        self._running, self.place = None, ""

    def wait_for_end(self, seconds: float = _END_SECONDS) -> None:
        """Until what `stop` has begun is done. From any thread."""
        if self._thread is not None:
            self._thread.join(seconds)

    def under_way(self) -> Sequence[Record]:
        """The requests that are answered, or wait for it, oldest first."""
        return self._desk.under_way() if self._desk is not None else ()

    def ended(self) -> Sequence[Record]:
        """Those that came to their end last, newest first."""
        return [copy(record) for record in reversed(list(self._ended))]

    def end(self, request_id: str) -> None:
        """Enough of a request; its client is told."""
        if self._desk is not None:
            self._desk.end(request_id)

    def _offered(self) -> Mapping[str, Path]:
        engine = self._engines.engine
        return {} if engine is None else {_name(engine): Path(engine.info.path)}


def _name(engine: Engine) -> str:
    return shown_name(Path(engine.info.path))


class _Lent:
    """The `Lender` of a chat, which loads and changes its model itself."""

    loading: LoadProgress | None = None
    idle_for = 0.0

    def __init__(self, engines: EngineJobs) -> None:
        self._engines = engines

    @property
    def engine(self) -> Engine | None:
        return self._engines.engine

    @property
    def model(self) -> str:
        engine = self._engines.engine
        return "" if engine is None else _name(engine)

    @contextlib.asynccontextmanager
    async def using(self, model: str) -> AsyncIterator[Engine]:
        loop = asyncio.get_running_loop()
        there: asyncio.Future[Engine] = loop.create_future()

        def settle(engine: Engine | None, why: str | None) -> None:
            if there.done():
                # The client has left.
                return
            if engine is None:
                there.set_exception(ModelError(f"no model is loaded here: {why}"))
            elif _name(engine) != model:
                there.set_exception(ModelError(f"{one_line(model, 80)}: {_name(engine)} has just taken its place"))
            else:
                there.set_result(engine)

        def granted(engine: Engine | None, why: str | None) -> None:
            # The server has been stopped meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, engine, why)

        loan = Loan(granted)
        self._engines.lend(loan)
        try:
            yield await there
        finally:
            self._engines.give_back(loan)

    async def unload(self) -> None:
        """The chat has it."""

    def close(self) -> None:
        """The chat closes it."""

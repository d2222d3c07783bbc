"""The server on its socket: from the first connection to the last, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from exlchat.server.desk import Desk

_BACKLOG = 256
_MOST_CONNECTIONS = 2000
"""Those that say nothing cost memory, too."""
_LAST_WORDS_SECONDS = 1.0
"""For clients to be told that their answers end, when the time of draining is over."""
_LARGEST_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""


class BindError(Exception):
    """The address cannot be had; one line."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host and a port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8765
    unix: Path | None = None

    @property
    def local(self) -> bool:
        """Whether nobody from another machine can come."""
        return self.unix is not None or self.host == "localhost" or _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(address: Address) -> socket.socket:
    """A bound socket, on which nobody is heard yet. Raises `BindError`."""
    if address.unix is not None:
        return _unix_socket(address.unix)
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise BindError(f"{address.host}: no address to listen on ({_reason(error)}); give --host 127.0.0.1") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise BindError(
            f"{address.host}:{address.port} cannot be listened on ({_reason(error)}); give another --port"
        ) from None
    return bound


def _unix_socket(path: Path) -> socket.socket:
    """One that only its owner can open. What a server left that was killed is taken away."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        bound.bind(str(path))
        # Nobody can connect before it listens.
        path.chmod(0o600)
    except (OSError, ValueError) as error:
        bound.close()
        raise BindError(f"{path} cannot be listened on ({_reason(error)}); give another path to --unix") from None
    return bound


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are heard by whoever runs the program."""
        yield


class Running:
    """One server. `run` returns when it has been stopped; `stop` may be called in any thread and signal handler.

    Args:
        app: what answers.
        bound: as of `listen`; closed in the end.
        drain: seconds that answers may still take when it is stopped.
        ready: called when the first request can come.
    """

    def __init__(
        self, app: ASGIApp, desk: Desk, bound: socket.socket, *, drain: float, ready: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            # Without parts in C, whose bounds are other ones.
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._desk, self._bound, self._drain, self._ready = desk, bound, drain, ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """Nothing new is begun, and what runs has until the end of `drain`."""
        if self._loop is not None:
            # Its end has come already otherwise.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        else:
            self._stop.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve([self._bound]))
        beside = [asyncio.create_task(self._stopped()), asyncio.create_task(self._desk.watch())]
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.01)
        self._ready()
        await serving
        for task in beside:
            task.cancel()
        self._desk.close()

    async def _stopped(self) -> None:
        await self._stop.wait()
        desk = self._desk
        desk.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain):
                while desk.running:
                    await asyncio.sleep(0.05)
        desk.give_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                while desk.running:
                    await asyncio.sleep(0.01)
        self._server.should_exit = True


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()

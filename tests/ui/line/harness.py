"""The real line mode for tests: keys through a pipe, a terminal that is a text, a scripted engine, real files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input

from exlchat.ui.line.chat import LineChat
from exlchat.ui.line.formatter import Fragments, text_of
from exlchat.ui.line.plain import PlainConsole
from exlchat.ui.line.run import BROKEN, converse
from exlchat.ui.line.screen import LineScreen, terminal_output
from tests.patience import PATIENCE
from tests.ui.app_harness import services
from tests.ui.scripted_engine import ScriptedEngine

CONTROL = re.compile(r"\x1b\[[0-9;?<>]*[A-Za-z]")
"""What prompt_toolkit sends: nothing but CSI sequences."""


class RecordedScreen(LineScreen):
    """A screen that remembers what was written for good."""

    written: list[Fragments]
    submitted = 0

    def put(self, lines: Any) -> None:
        if not hasattr(self, "written"):
            self.written = []
        self.written += lines
        super().put(lines)

    def submit(self) -> None:
        super().submit()
        self.submitted += 1


@dataclass
class Line:
    """One line mode that runs."""

    chat: LineChat
    screen: RecordedScreen
    keys: PipeInput
    out: io.StringIO
    task: asyncio.Task[None]

    @property
    def text(self) -> str:
        """What was written for good."""
        return text_of(self.screen.written)

    @property
    def message(self) -> str:
        """What is being typed."""
        return self.screen.buffer.text

    def type(self, keys: str) -> None:
        self.keys.send_text(keys)

    async def say(self, text: str) -> None:
        """Type a message and send it."""
        self.type(text)
        before = self.screen.submitted
        await self.until(lambda: self.message.endswith(text[-20:]))
        self.type("\r")
        await self.until(lambda: self.screen.submitted > before)

    async def sees(self, text: str) -> None:
        await self.until(lambda: text in self.text)

    async def idle(self) -> None:
        """Wait until no answer is on its way and all is written."""
        await self.until(lambda: not self.chat.session.busy and self.chat.model.info is not None)
        await asyncio.sleep(0.05)

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        await until(condition, seconds, lambda: f"{self.text}\n--- typed: {self.message!r}")


async def until(condition: Callable[[], bool], seconds: float = PATIENCE, shown: Callable[[], str] = str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds} s:\n{shown()}"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def line_mode(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    history: History | None = None,
    **wanted: Any,
) -> AsyncIterator[Line]:
    """The line mode on a terminal of `size`; other arguments as of `services`."""
    out = io.StringIO()
    with create_pipe_input() as keys:
        output = terminal_output(out, lambda: size, "xterm-256color")

        def screen(chat: LineChat) -> RecordedScreen:
            return RecordedScreen(chat, keys, output, history or InMemoryHistory())

        chat = LineChat(services(folder, engine, **wanted), screen)
        task = asyncio.create_task(converse(chat))
        console = chat.console
        assert isinstance(console, RecordedScreen)
        await until(lambda: console.app.is_running)
        line = Line(chat, console, keys, out, task)
        try:
            yield line
            assert BROKEN not in line.text
        finally:
            chat.leave()
            await asyncio.wait_for(task, 20)
            chat.services.store.close()


@dataclass
class Plain:
    """One plain line mode that runs."""

    chat: LineChat
    out: io.StringIO
    keyboard: int
    task: asyncio.Task[None]

    @property
    def text(self) -> str:
        return self.out.getvalue()

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode("utf-8", "surrogateescape"))

    async def sees(self, text: str) -> None:
        await until(lambda: text in self.text, shown=lambda: self.text)

    async def idle(self) -> None:
        await until(lambda: not self.chat.session.busy and self.chat.model.info is not None)
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def plain_mode(
    folder: Path, engine: ScriptedEngine | None = None, *, out: io.StringIO | None = None, **wanted: Any
) -> AsyncIterator[Plain]:
    """The plain mode; what it reads comes through a pipe, a line at a time, as from a terminal."""
    source, keyboard = os.pipe()
    out = out or io.StringIO()
    chat = LineChat(services(folder, engine, **wanted), lambda chat: PlainConsole(chat, source, out))
    task = asyncio.create_task(converse(chat))
    try:
        await until(lambda: "You: " in out.getvalue())
        yield Plain(chat, out, keyboard, task)
    finally:
        chat.leave()
        await asyncio.wait_for(task, 20)
        os.close(source)
        with contextlib.suppress(OSError):
            os.close(keyboard)
        chat.services.store.close()

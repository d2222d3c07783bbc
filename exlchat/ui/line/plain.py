"""Lines and nothing else, for screen readers and terminals that can do no more: the terminal itself edits the line."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import termios
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.composer.typed_input import Prompt, parse_input
from exlchat.ui.line.formatter import text_of
from exlchat.ui.line.input_text import goes_on
from exlchat.ui.line.plain_formatter import PlainFormatter
from exlchat.ui.terminal.clipboard import copy_with_tool, has_tool
from exlchat.ui.terminal.interrupts import is_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.formatter import Formatter, Fragments

_PROMPT = "You: "
_EDIT_PROMPT = "Anew: "
_READ_BYTES = 1 << 16
_PASTE_SECONDS = 0.05
"""Lines that come faster than anybody types them belong to one message."""


class PlainConsole:
    """A `Console` that only appends. Runs on the thread of the event loop."""

    def __init__(self, chat: LineChat, source: int, out: TextIO) -> None:
        """`source` is the file descriptor that lines are read from."""
        self._chat = chat
        self._source = source
        self._out = out
        self._formatter = PlainFormatter()
        self._decoder = codecs.getincrementaldecoder(_encoding(sys.stdin))("replace")
        self._partial = ""
        self._lines: list[str] = []
        self._draft = ""
        self._due: asyncio.TimerHandle | None = None
        self._prompted = False
        self._held: list[Fragments] | None = None
        """Lines that wait while an editor has the terminal."""
        self._ended: asyncio.Future[None] | None = None

    # Console

    @property
    def formatter(self) -> Formatter:
        return self._formatter

    @property
    def repaints(self) -> bool:
        return False

    @property
    def tail_rows(self) -> int:
        return 0

    @property
    def in_editor(self) -> bool:
        return self._held is not None

    def put(self, lines: Sequence[Fragments]) -> None:
        """Whole lines, behind an end of the line in which the prompt stands."""
        if not lines:
            return
        if self._held is not None:
            self._held += lines
            return
        text = "".join(
            f"{part}\n" for line in text_of(lines).removesuffix("\n").split("\n") for part in self._broken(line)
        )
        if self._prompted:
            text = f"\n{text}"
            self._prompted = False
        self._write(text)
        self.refresh()

    def _broken(self, line: str) -> Iterator[str]:
        """A line in pieces that fit the terminal, parted at spaces where there are any: it would part words."""
        try:
            width = os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError):
            width = 0
        start = used = space = 0
        for at, letter in enumerate(line):
            cells = cell_len(letter)
            if width and used + cells > width and space > start:
                yield line[start:space]
                start, used = space + 1, cell_len(line[space + 1 : at])
            if letter == " " and line[start:at].strip():
                space = at
            used += cells
        yield line[start:]

    def refresh(self) -> None:
        """Ask for the next message, when nothing is being said and nothing is typed."""
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().call_soon(self._prompt)

    def hint(self, line: str, seconds: float) -> None:
        del seconds
        self._chat.tell(line)

    def typed(self) -> str:
        """Lines of a message that is not finished, behind what was typed in another run."""
        unfinished = "\n".join([*self._lines, *([self._partial] if self._partial else [])])
        return "\n\n".join(part for part in (self._draft, unfinished) if part)

    def set_text(self, text: str) -> None:
        """Nothing can be put into the terminal's line: it is said, and kept until a message is sent."""
        self._draft = text
        if text:
            self.put(self._formatter.remark("note", f"typed before and not sent: {text}"))

    def take_unfinished(self) -> None:
        """The line that the terminal still has; the shell would take it for one of its own."""
        try:
            kept = termios.tcgetattr(self._source)
        except (termios.error, OSError):
            return
        with contextlib.suppress(termios.error, OSError):
            lines = [*kept[:3], kept[3] & ~termios.ICANON, *kept[4:6], list(kept[6])]
            lines[6][termios.VMIN] = lines[6][termios.VTIME] = 0
            termios.tcsetattr(self._source, termios.TCSANOW, lines)
            self._partial += self._decoder.decode(os.read(self._source, _READ_BYTES))
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._source, termios.TCSANOW, kept)

    def begin_edit(self, text: str, what: str) -> None:
        """In $VISUAL or $EDITOR, where one is set; else the next message that is typed takes the place of this one."""
        if any(os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR")):
            self._held = []
            self._chat.keep_running(self._edit(text))
            return
        told = (
            f"{what[0].upper()}{what[1:]} is:\n{text}\nType it anew as it shall be; an empty line leaves it as it is."
        )
        self.put(self._formatter.remark("note", told))

    def end_edit(self, before: str) -> None:
        """What is typed anew is gone; what was not sent before is said again."""
        self._lines = []
        if before:
            self.set_text(before)

    async def _edit(self, text: str) -> None:
        new, editing = await self._in_editor(text), self._chat.editing
        if new is None or new == text or editing.submit(new):
            editing.leave()

    async def _write_anew(self) -> None:
        if new := await self._in_editor(""):
            # What a signal has ended was not meant to be sent yet.
            self.set_text(new if is_ending() else self._chat.submit(new))

    async def _in_editor(self, text: str) -> str | None:
        """What the editor made of a text, `None` if nothing; what comes meanwhile is written after it."""
        # No start needs it.
        from exlchat.ui.terminal.editor import EditorError, write

        loop = asyncio.get_running_loop()
        loop.remove_reader(self._source)
        new: str | None = None
        try:
            new = await asyncio.to_thread(write, text)
        except EditorError as error:
            self._chat.tell(str(error), warning=True)
        finally:
            if self._ended is not None and not self._ended.done():
                loop.add_reader(self._source, self._read)
            held, self._held = self._held or [], None
            self.put(held)
        return new

    def write_in_editor(self) -> None:
        """What is written there is sent."""
        self._held = []
        self._chat.keep_running(self._write_anew())

    def use_vi(self, wanted: bool) -> None:
        """The terminal edits the line."""

    def set_theme(self) -> None:
        """There are no colours."""

    def copy(self, text: str) -> None:
        if not has_tool():
            raise NotPossibleError("there is no tool for the clipboard here: wl-copy, xclip, xsel or pbcopy")
        self._chat.in_background(lambda: copy_with_tool(text), lambda _: None)

    def leave(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # Life

    async def run(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._prompt()
        loop.call_soon(ready)
        loop.add_reader(self._source, self._read)
        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(self._interrupted))
        try:
            await self._ended
        finally:
            loop.remove_reader(self._source)
            signal.signal(signal.SIGINT, before)
            if self._prompted:
                self._write("\n")

    def _interrupted(self) -> None:
        if self._held is not None:
            # It is the editor's.
            return
        if not self._prompted:
            # The terminal has shown "^C" in a line of its own.
            self._write("\n")
        if self._lines and self._chat.session.answering is None:
            # Of the last line the terminal has let go by itself.
            self._lines, self._partial = [], ""
            self.refresh()
            return
        self._chat.commands.run("copy-or-stop")

    def _prompt(self) -> None:
        quiet = self._held is None and self._chat.session.answering is None and not self._lines and not self._partial
        if quiet and not self._prompted and self._ended is not None and not self._ended.done():
            self._prompted = True
            self._write(_EDIT_PROMPT if self._chat.editing.active else _PROMPT)

    def _read(self) -> None:
        try:
            data = os.read(self._source, _READ_BYTES)
        except OSError:
            # Linux says EIO, not end of file, when the other side of a terminal has closed.
            data = b""
        if not data:
            self._flush()
            self._chat.commands.run("quit")
            return
        *whole, self._partial = (self._partial + self._decoder.decode(data)).split("\n")
        if not whole:
            return
        # The terminal has shown the line and its end.
        self._prompted = False
        self._lines += [line.removesuffix("\r") for line in whole]
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(_PASTE_SECONDS, self._flush)

    def _flush(self) -> None:
        """Hand over the message, unless its last line says that another one follows."""
        self._due = None
        text = "\n".join(self._lines)
        if not text and not self._lines:
            return
        if (longer := goes_on(text)) is not None:
            self._lines = longer.removesuffix("\n").split("\n")
            return
        self._lines = []
        if self._chat.editing.active:
            if not text.strip() or self._chat.submit(text):
                self._chat.editing.leave()
        elif text.strip():
            self._submit(text)
        self.refresh()

    def _submit(self, text: str) -> None:
        """A message takes the place of what was not sent before, and joins it where it cannot be sent either."""
        if not isinstance(parse_input(text), Prompt):
            self._chat.submit(text)
            return
        before, self._draft = self._draft, ""
        if back := self._chat.submit(text):
            self._draft = "\n\n".join(part for part in (before, back) if part)

    def _write(self, text: str) -> None:
        encoding = _encoding(self._out)
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()


def _encoding(stream: TextIO | None) -> str:
    return (stream.encoding if stream is not None else None) or "utf-8"

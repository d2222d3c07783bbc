"""What the terminal sends, made safe before Textual reads keys out of it.

Two things Textual 8.2 gets wrong: a byte that is not UTF-8 ends the program with a traceback, and an escape character
in pasted text turns what follows it into keys, so that a line break in the paste would send the message.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App

    Size = tuple[int, int]

PASTE_BEGINS = "\x1b[200~"
PASTE_ENDS = "\x1b[201~"
ESCAPE_PICTURE = "\N{SYMBOL FOR ESCAPE}"

_POLL_SECONDS = 0.1
_READ_BYTES = 1 << 16


class InputDecoder:
    """Bytes of a terminal -> text for the key parser, whatever the size of the pieces they come in.

    Broken UTF-8 becomes U+FFFD. Within a bracketed paste an escape character becomes its picture, as the composer would
    show it anyway.
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._pasting = False
        self._before = ""

    def feed(self, data: bytes) -> str:
        """The text of the next bytes. In a paste, what may be the beginning of its end mark waits for the rest."""
        rest = self._decoder.decode(data)
        passed = []
        while rest:
            text, rest = self._take_paste(rest) if self._pasting else self._take_keys(rest)
            passed.append(text)
        return "".join(passed)

    def _take_keys(self, text: str) -> tuple[str, str]:
        """Keys up to a paste, and the rest. Nothing waits, for a lone escape is a key; only its sight is kept."""
        seen = self._before + text
        at = seen.find(PASTE_BEGINS)
        if at < 0:
            self._before = seen[1 - len(PASTE_BEGINS) :]
            return text, ""
        end = at + len(PASTE_BEGINS) - len(self._before)
        self._before, self._pasting = "", True
        return text[:end], text[end:]

    def _take_paste(self, text: str) -> tuple[str, str]:
        inside, found, after = (self._before + text).partition(PASTE_ENDS)
        kept = len(inside) - (0 if found else _overlap(inside, PASTE_ENDS))
        self._before, self._pasting = inside[kept:], not found
        return inside[:kept].replace("\x1b", ESCAPE_PICTURE) + found, after


class _Screen:
    """Where is drawn. Into a terminal that has gone nothing is: an error would end the thread that draws, and the app
    would wait for that.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


class TerminalDriver(LinuxDriver):
    """Textual's own driver with `InputDecoder` in front of its key parser."""

    def __init__(self, app: App[object], *, debug: bool = False, mouse: bool = True, size: Size | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.draws = False
        """Whether the terminal is in the modes of the app."""
        self._file = cast("Any", _Screen(cast("TextIO", self._file)))

    def start_application_mode(self) -> None:
        self.draws = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        self.draws = False

    def run_input_thread(self) -> None:
        """Read keys until the driver stops. A terminal that has gone ends the app, which keeps what was written."""
        parser = XTermParser(self._debug)
        decoder = InputDecoder()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_POLL_SECONDS):
                    data = self._read()
                    if not data:
                        self._app.call_later(self._app.run_action, "end")
                        return
                    # The parser takes an empty text for the end of everything.
                    if text := decoder.feed(data):
                        for event in parser.feed(text):
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            # Linux says EIO, not end of file, when the other side of a terminal has closed.
            return b""


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` are the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)

"""What the program has said in this run; what nobody expected stands in a file too, with its traceback."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import open_to_append
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER = logging.getLogger("exlchat")
_MOST_LINES = 500
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: when, in seconds since 1970, and whether it was a warning."""

    at: float
    line: str
    warning: bool


class Log:
    """Belongs to one run. Warnings go to the file too; where none can be written, this run's lines are all there is."""

    def __init__(self, path: Path | None) -> None:
        """`path` `None` writes no file, as where nothing of a run is kept."""
        self.path = path
        self._said: deque[LogLine] = deque(maxlen=_MOST_LINES)
        for handler in LOGGER.handlers[:]:
            LOGGER.removeHandler(handler)
            handler.close()
        LOGGER.propagate = False
        LOGGER.addHandler(logging.NullHandler() if path is None else _PrivateFile(path))

    def say(self, line: str, *, warning: bool) -> None:
        self._said.append(LogLine(time.time(), line, warning))
        if warning:
            LOGGER.warning("%s", line)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The newest first, with its time; then where the file is. Headings have an empty right side."""
        yield "Said in this run, the newest first", ""
        for said in reversed(self._said):
            mark = "! " if said.warning else ""
            yield time.strftime("%H:%M:%S", time.localtime(said.at)), f"{mark}{said.line}"
        if not self._said:
            yield "", "Nothing yet"
        yield "The file", ""
        yield "Warnings", str(self.path) if self.path is not None else "not written: nothing of this run is kept"


class UnwrittenLog(Log):
    """Of what is kept nowhere, beside a run that has a file: its lines stay out of that, which goes on."""

    def __init__(self) -> None:
        self.path = None
        self._said = deque(maxlen=_MOST_LINES)

    def say(self, line: str, *, warning: bool) -> None:
        self._said.append(LogLine(time.time(), line, warning))


class _PrivateFile(RotatingFileHandler):
    """Made at the first record, for its owner alone; a full one becomes `….1`. A full disk is no reason to stop."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._folder = path.parent

    def _open(self) -> TextIOWrapper:
        paths.ensure_folder(self._folder)
        return TextIOWrapper(open_to_append(Path(self.baseFilename)), "utf-8", "backslashreplace")

    def format(self, record: logging.LogRecord) -> str:
        """As it can be looked at in a terminal: what a file or a model has put into a line steers nothing there."""
        return printable(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Nothing is printed over the screen."""

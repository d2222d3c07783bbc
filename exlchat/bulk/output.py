"""The file of answers, which is all that a run leaves behind: what it holds is done, whatever ended the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from exlchat.bulk.lines import Lines
from exlchat.paths import FolderError, atomic_write_pieces
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError, open_plain, open_to_append
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import one_line

_OURS = "exlchat"
_LARGEST_LINE = 2**30
_SYNC_SECONDS = 1.0
_PIECE = 2**20


class OutputError(Exception):
    """One line that names the file, what is wrong and how to mend it."""


class Output:
    """Opened by `opened`, for one run alone.

    Args:
        path: of the file.
        lines: what is asked for.
        run: names the model and all options that answers depend on.
    """

    def __init__(self, path: Path, lines: Lines, run: str) -> None:
        self._path, self._lines, self._run = path, lines, run
        self.done: set[int] = set()
        """Places of requests that have been answered."""
        self.changed = self.failed = 0
        """Of what was there: requests that ask for something else now, and those that came to nothing."""
        self._take_over()
        try:
            # Every line is one write, so that nothing is ever in our own memory alone.
            self._file = open_to_append(path).detach()
        except UntrustedFileError as error:
            raise OutputError(str(error)) from None
        self._synced = time.monotonic()

    def write(self, place: int, status: int, body: dict[str, Any]) -> None:
        """The answer of a request. Raises `OutputError`: there is no room; nothing of it is left there then."""
        digest = self._lines.digests[place]
        line = {
            "id": f"batch_req_{digest}",
            "custom_id": self._lines[place].id,
            "response": {"status_code": status, "request_id": f"req_{digest}", "body": body},
            "error": None,
            _OURS: {"request": digest, "run": self._run},
        }
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            now = time.monotonic()
            if now - self._synced > _SYNC_SECONDS:
                self._synced = now
                os.fsync(self._file.fileno())
        except OSError as error:
            os.truncate(self._path, before)
            raise self._full(error) from None
        if status == 200:
            self.done.add(place)

    def close(self) -> None:
        """What was written is on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._full(error) from None
        finally:
            self._file.close()

    def sort(self) -> None:
        """Brings the answers of a run that has come to its end into the order of the requests."""
        with self._reading() as file:
            found = sorted((place, start, end) for start, end, place, _ in self._places(file))
            starts = [start for _, start, _ in found]
            if starts != sorted(starts):
                self._replace(file, [(start, end) for _, start, end in found])

    def _take_over(self) -> None:
        """Learns what is done, and takes out what is to be asked again: each request has one answer in the end."""
        try:
            with self._reading() as file:
                kept: list[tuple[int, int]] = []
                for start, end, place, good in self._places(file):
                    if good and place not in self.done:
                        self.done.add(place)
                        kept.append((start, end))
                if sum(end - start for start, end in kept) != os.fstat(file.fileno()).st_size:
                    self._replace(file, kept)
        except NoSuchFileError:
            return
        except UntrustedFileError as error:
            raise OutputError(str(error)) from None

    def _places(self, file: BufferedReader) -> Iterator[tuple[int, int, int, bool]]:
        """Where each line begins and ends, the place of the request that it answers, and whether that is so still."""
        start, number = 0, 0
        while line := file.readline(_LARGEST_LINE):
            number += 1
            end = start + len(line)
            # Without its end it was being written when the run ended.
            yield start, end, *(self._answered(number, line) if line.endswith(b"\n") else (-1, False))
            start = end

    def _answered(self, number: int, line: bytes) -> tuple[int, bool]:
        try:
            value = read_json(line, most=_LARGEST_LINE)
        except JsonError:
            value = None
        ours = value.get(_OURS) if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(ours, dict) or "run" not in ours:
            raise OutputError(f"{self._shown}: line {number} is not of exlchat run; name another file with -o")
        if ours["run"] != self._run:
            raise OutputError(
                f"{self._shown}: is of a run with another model or other options; give those again, or another file"
            )
        ident, response = value.get("custom_id"), value.get("response")
        place = self._lines.places.get(ident) if isinstance(ident, str) else None
        if place is None:
            raise OutputError(
                f"{self._shown}: line {number} answers {one_line(str(ident), 80)!r}, which nobody asks for here; it is "
                "of another run: name another file with -o"
            )
        if ours.get("request") != self._lines.digests[place]:
            self.changed += 1
            return place, False
        good = isinstance(response, dict) and response.get("status_code") == 200
        self.failed += not good
        return place, good

    def _replace(self, file: BufferedReader, spans: Sequence[tuple[int, int]]) -> None:
        """The file holds these pieces of it alone, in this order."""
        try:
            atomic_write_pieces(self._path, _pieces(file, spans))
        except FolderError as error:
            raise OutputError(str(error)) from None

    @contextmanager
    def _reading(self) -> Iterator[BufferedReader]:
        with open_plain(self._path) as file:
            yield file

    @property
    def _shown(self) -> str:
        return one_line(str(self._path), 200)

    def _full(self, error: OSError) -> OutputError:
        reason = (error.strerror or type(error).__name__).lower()
        return OutputError(
            f"{self._shown}: cannot be written ({reason}); what is in it stays, and the same command goes on"
        )


def _pieces(file: BufferedReader, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    for start, end in spans:
        for at in range(start, end, _PIECE):
            file.seek(at)
            yield file.read(min(_PIECE, end - at))


@contextmanager
def opened(path: Path, lines: Lines, run: str) -> Iterator[Output]:
    """Raises `OutputError`: it is of another run, no such file can be, or another run writes it."""
    shown = one_line(str(path), 200)
    try:
        # The lock would make the folder.
        os.stat(path.parent)
        lock = FileLock(f"{path}.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputError(f"{shown}: another run writes it; wait for its end, or name another file with -o") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or type(error).__name__).lower()
        raise OutputError(f"{shown}: cannot be written ({reason}); name a file in a folder that there is") from None
    try:
        output = Output(path, lines, run)
        try:
            yield output
        finally:
            output.close()
    finally:
        # Who waits for it has been refused already.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()

"""What pays: reading a page from the disk, or computing it again. Measured, and remembered in a small file."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

RATES_FILE = "rates.json"

_VERSION = 1
_HALF_LIFE = 1.0
_ENOUGH_SECONDS = 0.05
_SMALLEST_PREFILL = 128
_LARGEST_FILE = 4096


class Average:
    """Amount a second, newer observations counting more: a second of new observation halves what older ones count."""

    def __init__(self, amount: float = 0.0, seconds: float = 0.0) -> None:
        self.amount = amount
        self.seconds = seconds

    def note(self, amount: float, seconds: float) -> None:
        """Adds an observation; one without time or amount is ignored."""
        if not (0 < seconds < math.inf and 0 < amount < math.inf):
            return
        older = 0.5 ** (seconds / _HALF_LIFE)
        self.amount = self.amount * older + amount
        self.seconds = self.seconds * older + seconds

    @property
    def rate(self) -> float | None:
        """Amount a second, or `None` before 0.05 s were observed: less is mostly noise."""
        return self.amount / self.seconds if self.seconds >= _ENOUGH_SECONDS and self.amount > 0 else None


class Rates:
    """How fast pages are read and prompts are computed.

    Args:
        file: where both are remembered. A damaged or absent one says nothing.
        clock: seconds.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.perf_counter) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._reads, self._prefills = _load(file)
        self._changed = False
        self._reading = 0
        self._since = 0.0
        self._burst = 0

    @property
    def read(self) -> float | None:
        """Bytes a second, by all threads together."""
        with self._lock:
            return self._reads.rate

    @property
    def prefill(self) -> float | None:
        """Tokens a second."""
        with self._lock:
            return self._prefills.rate

    def start_read(self) -> None:
        """A thread begins to read. Time counts once while any of them reads, and not between reads."""
        with self._lock:
            if self._reading == 0:
                self._since, self._burst = self._clock(), 0
            self._reading += 1

    def end_read(self, size: int) -> None:
        """A thread has read so many bytes: 0 if what it read was of no use."""
        with self._lock:
            self._reading -= 1
            self._burst += size
            if self._reading == 0 and self._burst:
                self._reads.note(self._burst, self._clock() - self._since)
                self._changed = True

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed. Fewer than 128 are ignored: more would have cost the same."""
        if tokens < _SMALLEST_PREFILL:
            return
        with self._lock:
            self._prefills.note(tokens, seconds)
            self._changed = True

    def pays(self, size: int, tokens: int) -> bool:
        """Whether reading `size` bytes is expected to be faster than computing `tokens`; yes while that is unknown."""
        read, prefill = self.read, self.prefill
        return read is None or prefill is None or size / read < tokens / prefill

    def save(self) -> None:
        """Remembers both, if the folder is there and can be written."""
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            content = {
                "version": _VERSION,
                "read": [self._reads.amount, self._reads.seconds],
                "prefill": [self._prefills.amount, self._prefills.seconds],
            }
        try:
            _replace(self._file, json.dumps(content) + "\n")
        except OSError:
            # The folder may be made later: the first page makes it.
            with self._lock:
                self._changed = True


def _load(file: Path) -> tuple[Average, Average]:
    """Reads and prefills, counting half: what was slow once is tried again after a few starts without a new figure."""
    try:
        content = read_json_file(file, largest=_LARGEST_FILE, kind="file of rates")
        if content["version"] != _VERSION:
            return Average(), Average()
        return _average(content["read"]), _average(content["prefill"])
    except (UntrustedFileError, ValueError, KeyError, TypeError, OverflowError):
        return Average(), Average()


def _average(pair: object) -> Average:
    if not isinstance(pair, list):
        raise TypeError
    amount, seconds = (float(number) for number in pair)
    if not (0 < amount < 1e18 and 1e-9 < seconds < 1e9):
        return Average()
    weight = min(seconds, _HALF_LIFE) / 2
    return Average(amount / seconds * weight, weight)


def _replace(file: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise

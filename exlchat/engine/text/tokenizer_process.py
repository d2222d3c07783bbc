"""The trial of a stranger's tokenizer in a process of its own, before it is opened here.

A file of a tokenizer can take all memory, never end, or bring the library down with everything around it. There that
costs a line. Nothing of torch is imported, so that a trial can begin before torch is.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event, Lock, Thread

from exlchat.llm.info import ModelError
from exlchat.untrusted.child import Child, ChildError
from exlchat.untrusted.files import UntrustedFileError, read_bytes
from exlchat.untrusted.text import one_line

SECONDS = 10.0
"""Of processor time; 256,000 tokens take two, most of it for opening."""
MEMORY = 1_000_000_000
"""Bytes; 256,000 tokens take 350 million."""

# config.json only tells which of our own patterns goes with a vocabulary without one.
_FILES = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.json", "tokenizer.model", "spm.model", "vocab.json", "merges.txt"),
)
_LARGEST = 128_000_000
_LONGEST_LINE = 500
_TAKE = "take the tokenizer's files from the original model"
_CHILD = Child("exlchat.engine.text.tokenizer_trial", seconds=SECONDS, memory=MEMORY, largest=100_000)

_ahead: dict[Path, Trial] = {}
_sound: set[bytes] = set()
"""What the files of tokenizers held that need no other trial."""
_lock = Lock()


class Trial:
    """A trial that has begun, of the tokenizer of one model directory: first it is opened there, then used."""

    def __init__(self, folder: Path) -> None:
        self._line = self._opening = f"{folder}: the trial of its tokenizer has not ended; {_TAKE}"
        self._opened = Event()
        # A daemon: a program that ends does not wait for it.
        self._thread = Thread(target=self._run, args=(folder,), name="exlchat-tokenizer-trial", daemon=True)
        self._thread.start()

    @property
    def opened(self) -> bool:
        """Whether `require_opened` has nothing to wait for."""
        return self._opened.is_set()

    def require_opened(self) -> None:
        """Waits until it is known to be opened without harm. Raises `ModelError`, one line, where it is not."""
        self._opened.wait()
        if self._opening:
            raise ModelError(self._opening)

    def require(self) -> None:
        """Waits for the end. Raises `ModelError`, one line, where the tokenizer must not be used."""
        self._thread.join()
        if self._line:
            raise ModelError(self._line)

    def _run(self, folder: Path) -> None:
        try:
            content = _content(folder)
            sound = content in _sound
            self._opening = "" if sound else _asked("open", folder)
            self._opened.set()
            self._line = self._opening or ("" if sound else _asked("use", folder))
            if not self._line:
                _sound.add(content)
        finally:
            self._opened.set()


def start(folder: Path) -> None:
    """Begins the trial of a tokenizer that will soon be opened, without waiting for it."""
    trial = Trial(folder)
    with _lock:
        _ahead[folder] = trial


def take(folder: Path) -> Trial:
    """The trial of this directory that was begun ahead, which is nobody else's then, or a new one."""
    with _lock:
        trial = _ahead.pop(folder, None)
    return trial or Trial(folder)


def close() -> None:
    """Ends the process, which is kept for other trials. A later one starts another.

    What was begun ahead and has not been taken ends with it, and says nothing of its tokenizer.
    """
    with _lock:
        _ahead.clear()
    _CHILD.close()


def _asked(step: str, folder: Path) -> str:
    """What is wrong, in one line; empty where nothing is."""
    try:
        return one_line(str(_CHILD.ask([step, str(folder.absolute())])), _LONGEST_LINE)
    except ChildError as error:
        return f"{folder}: the trial of its tokenizer {error}; {_TAKE}"


def _content(folder: Path) -> bytes:
    """What a tokenizer's files hold, as a hash, in 30 ms for those of 256,000 tokens."""
    # The first screen does not wait for it.
    import hashlib

    found = hashlib.sha256()
    for name in _FILES:
        try:
            data = read_bytes(folder / name, largest=_LARGEST, kind=name)
        except UntrustedFileError as error:
            # Whether that matters is for the opening to say.
            data = error.clause.encode("utf-8", "surrogatepass")
        found.update(b"%d " % len(data) + name.encode())
        found.update(data)
    return found.digest()

"""What was answered here before, with the ids of it: clients send only the text of an answer back.

Encoded again, a text may give other ids than those that were generated, and from there on a prompt would be read anew,
though the cache has it. So answers are remembered by what the client got of them: without thoughts, and whatever white
space it adds or takes away around them.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass

from exlchat.llm.thought_splitter import ThinkingMarks

MOST_ANSWERS = 100_000
MOST_BYTES = 64 * 2**20
"""Of texts and ids together; those that were asked for longest ago are forgotten."""
_OF_EACH = 400  # bytes that an entry takes besides


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as the model gave it.

    Args:
        text: all of it, thoughts and their marks too.
        token_ids: of that text, in order.
        marks: of its thoughts; `None` where its format has none.
    """

    text: str
    token_ids: tuple[int, ...]
    marks: ThinkingMarks | None


@dataclass(frozen=True, slots=True)
class _Kept:
    text: bytes
    ids: bytes
    marks: ThinkingMarks | None

    @property
    def size(self) -> int:
        return len(self.text) + len(self.ids) + _OF_EACH


class SaidBefore:
    """Answers of all models of a server. From any thread."""

    def __init__(self, most_answers: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self._most_answers, self._most_bytes = most_answers, most_bytes
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def remember(self, model: str, before: str, shown: str, said: Said) -> None:
        """Keeps an answer.

        Args:
            model: whose ids these are.
            before: the text of the message that it answers.
            shown: what of it the client got.
        """
        if not shown.strip() or not said.token_ids:
            return
        key = _key(model, before, shown)
        text = said.text.encode("utf-8", "surrogatepass")
        kept = _Kept(text, array("I", said.token_ids).tobytes(), said.marks)
        with self._lock:
            self._drop(key)
            self._kept[key] = kept
            self._bytes += kept.size
            while len(self._kept) > self._most_answers or self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def find(self, model: str, before: str, shown: str) -> Said | None:
        """What was answered so; `None` where that is not known."""
        key = _key(model, before, shown)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            self._kept.move_to_end(key)
        ids = array("I")
        ids.frombytes(kept.ids)
        return Said(kept.text.decode("utf-8", "surrogatepass"), tuple(ids), kept.marks)

    def _drop(self, key: bytes) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._bytes -= gone.size


def _key(model: str, before: str, shown: str) -> bytes:
    """The message before tells short answers apart that are the same; what stands before that may be cut off later."""
    found = hashlib.sha256()
    for part in (model, before.strip(), shown.strip()):
        data = part.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.digest()

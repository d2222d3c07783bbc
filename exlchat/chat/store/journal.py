"""The answer being written, and the thread that puts it on disk while it grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from exlchat.chat.prompt.thought_meter import Thought, ThoughtMeter
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.llm.events import TextDelta

INTERVAL_SECONDS = 0.3
"""What a crash can cost is this plus one write; the promise to the user is half a second."""


class AnswerJournal:
    """Collects an answer and writes it down at least every `interval` seconds while it changes.

    A thread of its own does the writing: a slow engine may be silent for seconds after a token that is not yet on disk,
    and a slow disk must not hold up the next token. A write that fails is tried again with the next one; `error` is
    the newest failure that no later write has made good.
    """

    def __init__(
        self,
        store: ConversationStore,
        message_id: str,
        *,
        text: str = "",
        token_ids: Sequence[int] = (),
        goes_on: bool = False,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self.error: StoreError | None = None
        self._store = store
        self._message_id = message_id
        self._interval = interval
        # An answer that goes on was thought about when it began.
        self._meter = None if goes_on else ThoughtMeter()
        self._text = [text]
        self._ids = list(token_ids)
        self._changed = threading.Condition()
        self._dirty = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="answer-journal", daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        with self._changed:
            return "".join(self._text)

    @property
    def token_ids(self) -> tuple[int, ...]:
        with self._changed:
            return tuple(self._ids)

    @property
    def thought(self) -> Thought | None:
        with self._changed:
            return None if self._meter is None else self._meter.thought

    def add(self, delta: TextDelta) -> None:
        """Append to the answer; returns at once."""
        with self._changed:
            self._text.append(delta.text)
            self._ids += delta.token_ids
            if self._meter is not None:
                self._meter.add(delta)
            self._dirty = True
            self._changed.notify()

    def stop(self) -> None:
        """End the thread. It writes nothing more: whoever stops it closes the answer in the store."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait_for_change():
            started = time.monotonic()
            self._write()
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, started + self._interval - time.monotonic())

    def _wait_for_change(self) -> bool:
        """Whether there is something to write; `False` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._dirty or self._stopping)
            return not self._stopping

    def _write(self) -> None:
        with self._changed:
            text, ids = "".join(self._text), tuple(self._ids)
            self._dirty = False
        try:
            self._store.journal(self._message_id, text, ids)
            self.error = None
        except StoreError as error:
            self.error = error
            with self._changed:
                self._dirty = True

"""What `exlchat ask` writes to standard output: the answer as text or as JSON lines."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from exlchat.llm.events import Finished, PlaceChances, PrefillProgress, TokenChance
from exlchat.ui.terminal.standard_streams import json_text, write_text


class AnswerOutput(Protocol):
    """Receives an answer as it comes. Every method raises `OutputClosedError` or `OutputError`."""

    def start(self, *, model: str, conversation: str | None, prompt_tokens: int) -> None:
        """The prompt is ready; `conversation` is `None` when nothing is kept."""

    def progress(self, progress: PrefillProgress) -> None: ...

    def text(self, text: str) -> None: ...

    def thoughts(self, text: str) -> None: ...

    def tokens(self, places: Sequence[PlaceChances], texts: Mapping[int, str]) -> None:
        """Tokens of the text so far with their chances; `texts` are those of all tokens that are named."""

    def finish(self, finished: Finished) -> None: ...


class TextOutput:
    """The model's text, safe to look at; `JsonLinesOutput` has it exactly."""

    def __init__(self) -> None:
        # A "\r" at the end of a piece may be half of a line's end.
        self._line_ends = io.IncrementalNewlineDecoder(None, translate=True)
        self._at_line_start = True

    def start(self, *, model: str, conversation: str | None, prompt_tokens: int) -> None:
        """Nothing: only the answer goes to stdout."""

    def progress(self, progress: PrefillProgress) -> None: ...

    def text(self, text: str) -> None:
        """Writes and flushes, so that the reader sees every token as it comes."""
        self._write(self._line_ends.decode(text))

    def thoughts(self, text: str) -> None: ...

    def tokens(self, places: Sequence[PlaceChances], texts: Mapping[int, str]) -> None: ...

    def finish(self, finished: Finished) -> None:
        """Ends the last line if the answer has not."""
        del finished
        self._write(self._line_ends.decode("", final=True))
        if not self._at_line_start:
            write_text("\n")

    def _write(self, text: str) -> None:
        if text:
            self._at_line_start = text.endswith("\n")
            write_text(text)


class JsonLinesOutput:
    """One JSON object a line for each event; the last has the type `finished`.

    Args:
        answer: which of several answers it is; each object has it as `answer` then.
    """

    def __init__(self, *, answer: int | None = None) -> None:
        self._which = {} if answer is None else {"answer": answer}

    def start(self, *, model: str, conversation: str | None, prompt_tokens: int) -> None:
        """`{"type": "start", "model", "conversation", "prompt_tokens"}`."""
        self._event("start", model=model, conversation=conversation, prompt_tokens=prompt_tokens)

    def progress(self, progress: PrefillProgress) -> None:
        """`{"type": "prefill_progress", "done", "total", "cached"}`."""
        self._event("prefill_progress", **asdict(progress))

    def text(self, text: str) -> None:
        """`{"type": "text", "text"}`."""
        if text:
            self._event("text", text=text)

    def thoughts(self, text: str) -> None:
        """`{"type": "thinking", "text"}`."""
        self._event("thinking", text=text)

    def tokens(self, places: Sequence[PlaceChances], texts: Mapping[int, str]) -> None:
        """`{"type": "tokens", "tokens": [{"id", "text", "logprob", "rank", "top": [{"id", "text", "logprob"}]}]}`.

        The logarithms are natural ones, of the model's own probabilities at temperature 1.
        """

        def named(one: TokenChance) -> dict[str, object]:
            return {"id": one.token_id, "text": texts[one.token_id], "logprob": one.log_probability}

        self._event(
            "tokens",
            tokens=[
                {**named(place.taken), "rank": place.taken.rank, "top": [named(one) for one in place.top]}
                for place in places
                if place.taken is not None
            ],
        )

    def finish(self, finished: Finished) -> None:
        """`{"type": "finished", "reason", "text", "stats"}`; the text is all that the model said, with its thoughts."""
        stats = asdict(finished.stats) | {"tokens_per_second": finished.stats.tokens_per_second}
        self._event("finished", reason=finished.reason, text=finished.text, stats=stats)

    def _event(self, kind: str, **fields: object) -> None:
        write_text(json_text({"type": kind, **self._which, **fields}) + "\n")


def told(place: PlaceChances) -> tuple[TokenChance, ...]:
    """The tokens that are named at a place."""
    return place.top if place.taken is None else (place.taken, *place.top)

"""What `exlchat ask` writes: the answer as text or as JSON lines on stdout, progress and notices on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, TextIO

from exlchat.engine.events import Finished, LoadProgress, PlaceChances, PrefillProgress, TokenChance
from exlchat.ui.exit_codes import ExitCode
from exlchat.ui.markdown.sanitize import printable

_CLEAR_LINE = "\r\x1b[2K"


class OutputClosedError(Exception):
    """The reader of stdout has gone, as `head` does when it has enough."""


class OutputError(Exception):
    """stdout cannot be written: one line with the reason."""


class AnswerOutput(Protocol):
    """Receives an answer as it comes. Every method raises `OutputClosedError` or `OutputError`."""

    def start(self, *, model: str, conversation: str | None, prompt_tokens: int) -> None:
        """The prompt is ready; `conversation` is `None` when nothing is kept."""

    def progress(self, progress: PrefillProgress) -> None:
        """Part of the prompt is in the cache."""

    def text(self, text: str) -> None:
        """More of the answer."""

    def thoughts(self, text: str) -> None:
        """More of what the model thinks before it answers."""

    def tokens(self, places: Sequence[PlaceChances], texts: Mapping[int, str]) -> None:
        """Tokens of the text so far with their chances; `texts` are those of all tokens that are named."""

    def finish(self, finished: Finished) -> None:
        """The end of the answer."""


class TextOutput:
    """Exactly the model's text; on a terminal without the characters that could steer it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._at_line_start = True
        if not self._on_terminal:
            _use_utf8(stream)

    def start(self, *, model: str, conversation: str | None, prompt_tokens: int) -> None:
        """Nothing: only the answer goes to stdout."""

    def progress(self, progress: PrefillProgress) -> None:
        """Nothing: only the answer goes to stdout."""

    def text(self, text: str) -> None:
        """Writes and flushes, so that the reader sees every token as it comes."""
        if not text:
            return
        shown = printable(text).replace("\r", "") if self._on_terminal else text
        self._at_line_start = shown.endswith("\n")
        write_text(self._stream, shown)

    def thoughts(self, text: str) -> None:
        """Nothing: only the answer goes to stdout."""

    def tokens(self, places: Sequence[PlaceChances], texts: Mapping[int, str]) -> None:
        """Nothing: only the answer goes to stdout."""

    def finish(self, finished: Finished) -> None:
        """Ends the last line if the answer has not."""
        del finished
        if not self._at_line_start:
            write_text(self._stream, "\n")


class JsonLinesOutput:
    """One JSON object a line for each event; the last has the type `finished`.

    On a terminal everything but ASCII is escaped: JSON by itself lets C1 and bidi characters through.

    Args:
        answer: which of several answers it is; each object has it as `answer` then.
    """

    def __init__(self, stream: TextIO, *, answer: int | None = None) -> None:
        self._stream = stream
        self._which = {} if answer is None else {"answer": answer}
        self._on_terminal = stream.isatty()
        _use_utf8(stream)

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
        line = json.dumps({"type": kind, **self._which, **fields}, ensure_ascii=self._on_terminal)
        write_text(self._stream, f"{line}\n")


def told(place: PlaceChances) -> tuple[TokenChance, ...]:
    """The tokens that are named at a place."""
    return place.top if place.taken is None else (place.taken, *place.top)


class ErrorLines:
    """stderr: a moving progress line when it is a terminal, and lines that stay.

    A stderr that is closed or full swallows them: the answer on stdout matters more.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = io.StringIO() if stream is None else stream
        self._live = self._stream.isatty()
        self._shown = False

    def loading(self, progress: LoadProgress) -> None:
        """How far the weights are."""
        percent = 100 * progress.done // max(progress.total, 1)
        self.show(f"{progress.what}: {percent} %")

    def reading(self, progress: PrefillProgress) -> None:
        """How far the prompt is."""
        self.show(f"reading the prompt: {progress.done} of {progress.total} tokens")

    def thinking(self, words: int) -> None:
        """How long the model has been thinking."""
        self.show(f"thinking: {words} words so far")

    def say(self, line: str) -> None:
        """A line that stays. Texts from files may be quoted in it, so it is made printable."""
        self.clear()
        self._write(f"exlchat: {printable(line)}\n")

    def clear(self) -> None:
        """Takes the progress line away."""
        if self._shown:
            self._shown = False
            self._write(_CLEAR_LINE)

    def show(self, text: str) -> None:
        """The moving line; nothing where there is no terminal."""
        if self._live:
            self._shown = True
            # A line that wraps could not be cleared again.
            self._write(f"{_CLEAR_LINE}{printable(text)[: shutil.get_terminal_size().columns - 1]}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            abandon(self._stream)


def print_report(text: str) -> ExitCode:
    """Writes a command's result to standard output. That it cannot be written is a line on stderr and an exit code."""
    return write_report(printable(text))


def write_report(text: str) -> ExitCode:
    """As `print_report`, for text that may steer the terminal: nothing in it may come from elsewhere."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        abandon(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        abandon(sys.stdout)
        ErrorLines(sys.stderr).say(f"standard output cannot be written ({(error.strerror or '').lower()})")
        return ExitCode.ERROR
    return ExitCode.OK


def abandon(stream: TextIO) -> None:
    """Lets Python's own flush at exit go nowhere, after `stream` has refused to be written."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _use_utf8(stream: TextIO) -> None:
    """Files and pipes get UTF-8 and plain newlines whatever the locale says; no answer ends in an encoding error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")


def write_text(stream: TextIO, text: str) -> None:
    """Writes and flushes. Raises `OutputClosedError` or `OutputError`."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OutputError(f"standard output cannot be written ({reason}); the answer ends here") from error

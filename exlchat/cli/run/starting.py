"""A run is read, begun and told of: progress on standard error, and the report behind it."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from exlchat import paths
from exlchat.api.asked import Speaker
from exlchat.api.chat_model import ChatModel
from exlchat.api.head import fingerprint
from exlchat.app.library.memory import ModelMemory
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import engine_for
from exlchat.app.voice import voice_of
from exlchat.bulk.figures import Figures
from exlchat.bulk.lines import Lines, LinesError, is_plain
from exlchat.bulk.output import Output, OutputError, opened
from exlchat.bulk.running import BulkRun, EngineFailedError, places_to_ask, weight
from exlchat.config.files import read_settings
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Engine, HasCache
from exlchat.llm.request import GenerationRequest
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import LEAVE_SECONDS, ctrl_c_ends_at_once, signals_taken
from exlchat.ui.terminal.standard_streams import ErrorLines, print_lines
from exlchat.untrusted.files import UntrustedFileError, read_bytes
from exlchat.untrusted.text import one_line

_LARGEST = 8 * 2**30
_SHOWN_SECONDS = 0.5
_SAID_SECONDS = 60.0
"""Between two lines of progress where there is no terminal to show it moving."""
# As for the jobs of the chat: a thread that decodes must get the interpreter back in time.
_SWITCH_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class Start:
    """One `exlchat run`.

    Args:
        app: model, sampling and prompt options, as for the app.
        source: the file of requests as typed.
        output: the file of answers.
        score: whether lines are texts to be scored.
        rows: answers at a time; as many as the engine makes well unless given.
    """

    app: AppOptions
    source: str
    output: Path
    score: bool = False
    rows: int | None = None

    @property
    def at_a_time(self) -> int:
        servers = 1 if self.app.remote is None else 1 + len(self.app.remote.others)
        return self.rows or servers * MOST_ANSWERS


def run_file(start: Start) -> ExitCode:
    """Every failure is one line on standard error and an exit code."""
    lines = ErrorLines()
    try:
        return _run(start, lines)
    except (LinesError, OutputError, EngineFailedError, UntrustedFileError) as error:
        lines.say(str(error))
        return ExitCode.ERROR
    finally:
        lines.clear()


def _run(start: Start, told: ErrorLines) -> ExitCode:
    for notice in start.app.notices:
        told.say(notice)
    reading = read_settings().require_sound()
    requests = _read(start)
    model = start.app.model_path
    held = start.app.over(reading, ModelMemory(paths.folders().model_memory).settings_of(model).layer)
    voice = voice_of(held, model)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with ctrl_c_ends_at_once(before=told.clear):
        engine = engine_for(start.app, held, kept=False, conversations=start.at_a_time, on_progress=told.loading)
    told.clear()
    try:
        for notice in filter(None, (engine.info.without_draft, *engine.info.notices)):
            told.say(notice)
        engine.check(GenerationRequest((), voice.sampling, constraint=voice.speech.constraint))
        kind = engine.cache_report().kind if isinstance(engine, HasCache) else ""
        chat = ChatModel(engine, paths.folders().templates)
        speaker = Speaker(engine.info.name, chat, voice, fingerprint(engine.info, kind))
        with opened(start.output, requests, _name_of(speaker)) as output:
            return _answer(start, requests, output, speaker, told)
    finally:
        engine.close()


def _read(start: Start) -> Lines:
    if start.source == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise LinesError("nothing is piped in; give the file of requests by name")
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        path = paths.expanded(start.source)
        name, data = start.source, read_bytes(path, largest=_LARGEST, kind="file of requests")
    return Lines(name, data, plain=is_plain(name, data), score=start.score)


def _name_of(speaker: Speaker) -> str:
    """Of all that answers depend on beside the requests."""
    parts = json.dumps([speaker.fingerprint, asdict(speaker.voice)], sort_keys=True, default=str)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _answer(start: Start, requests: Lines, output: Output, speaker: Speaker, told: ErrorLines) -> ExitCode:
    there, left = len(output.done), places_to_ask(requests, output)
    for line in _taken_over(output):
        told.say(line)
    if not left:
        return ExitCode.OK
    figures = Figures(len(requests), there, sum(weight(requests, place) for place in left))
    progress = _Progress(figures, told)
    with _until_ctrl_c() as wanted:
        rows, tell = start.at_a_time, progress.show
        run = BulkRun(requests, output, speaker, rows=rows, figures=figures, wanted=wanted, tell=tell)
        try:
            run.run()
        finally:
            told.clear()
            report = {**figures.report(), **_about(start, speaker.model.engine)}
        if wanted() and not figures.failed:
            output.sort()
    _write_report(start, report, told)
    print_lines(_table(report))
    if not wanted():
        told.say(f"{figures.left:,} requests are left; the same command goes on")
        return ExitCode.STOPPED
    if figures.failed:
        shown = one_line(str(start.output), 200)
        told.say(f"{figures.failed.total():,} came to nothing, and {shown} says why; the same command asks them again")
        return ExitCode.ERROR
    return ExitCode.OK


def _taken_over(output: Output) -> Iterator[str]:
    if output.done:
        yield f"{len(output.done):,} requests have been answered already"
    if output.changed:
        yield f"{output.changed:,} requests ask for something else than before, and are asked again"
    if output.failed:
        yield f"{output.failed:,} requests that came to nothing are asked again"


def _about(start: Start, engine: Engine) -> dict[str, Any]:
    info = engine.info
    return {"model": info.name, "device": info.device, "requests_file": start.source, "answers_file": str(start.output)}


def _write_report(start: Start, report: dict[str, Any], told: ErrorLines) -> None:
    path = start.output.with_name(f"{start.output.name}.report.json")
    try:
        paths.atomic_write(path, json.dumps(report, indent=2) + "\n")
    except paths.FolderError as error:
        told.say(f"the report was not written: {error}")


def _table(report: dict[str, Any]) -> Iterator[str]:
    latency = report["latency_seconds"]
    rows = [
        ("answered", f"{report['answered']:,} of {report['requests']:,}, {report['answered_before']:,} before"),
        *(("failed", f"{count:,} with {status}") for status, count in report["failed"].items()),
        ("seconds", f"{report['seconds']:,.1f}"),
        ("prompt tokens", f"{report['prompt_tokens']:,}, {report['cached_tokens']:,} of them without work"),
        ("generated", f"{report['generated_tokens']:,}, {report['generated_tokens_per_second']:,.1f} a second"),
        ("at a time", f"{report['rows']:.1f}"),
    ]
    if latency["median"] is not None:
        rows.append(("an answer", f"{latency['median']:.1f} s, of twenty the slowest {latency['p95']:.1f} s"))
    for name, value in rows:
        yield f"{name:<14}{value}"


class _Progress:
    """One line, which moves where there is a terminal."""

    def __init__(self, figures: Figures, told: ErrorLines) -> None:
        self._figures, self._told = figures, told
        self._pause = _SHOWN_SECONDS if told.live else _SAID_SECONDS
        self._shown = time.monotonic()

    def show(self) -> None:
        now = time.monotonic()
        if now - self._shown < self._pause:
            return
        self._shown = now
        figures, left = self._figures, self._figures.seconds_left
        parts = (
            f"{figures.requests - figures.left:,} of {figures.requests:,}",
            f"{figures.failed.total():,} failed" if figures.failed else "",
            f"{figures.running} at a time",
            f"{figures.rate:,.1f} tokens/s",
            f"{100 * figures.cached_share:.0f} % of prompts cached",
            f"{_duration(left)} left" if left is not None else "",
        )
        line = " · ".join(part for part in parts if part)
        (self._told.show if self._told.live else self._told.say)(line)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


@contextmanager
def _until_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Inside, ctrl+c or a signal ends the run in order, and another one at once; whether it is to go on."""
    heard: list[int] = []

    def on_ctrl_c(number: int, _frame: FrameType | None) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    previous = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        with signals_taken(heard.append, seconds=LEAVE_SECONDS):
            yield lambda: not heard
    finally:
        signal.signal(signal.SIGINT, previous)

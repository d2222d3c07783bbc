"""What streaming costs the screen, for the transcript and for the designs it was chosen from.

    .venv/bin/python benchmarks/streaming.py            prints the tables
    .venv/bin/python benchmarks/streaming.py --write    also puts them into docs/transcript.md

Each measurement is a process of its own with a real Textual app on a pseudo-terminal of 120 x 40 cells, whose output is
read and thrown away. Text arrives at 100 pieces of 16 characters a second. Event-loop lag is by how much a sleep of
5 ms comes late.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import random
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import textual
from streaming_candidates import CANDIDATES, Candidate
from textual.app import App, ComposeResult

from exlchat.ui.tui.widgets.transcript import TranscriptItem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exlchat.ui.tui.widgets.transcript_items import Role

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "transcript.md"
MARKS = ("<!-- figures: benchmarks/streaming.py -->", "<!-- end of figures -->")
RUNS = 3
PIECE = 16
PIECES_PER_SECOND = 100
PROBE_SECONDS = 0.005
CELLS = (120, 40)
TIMEOUT = 180.0
STREAMS = ("list", "code")
OPENINGS = (200, 2_000, 20_000)
SLOW_FROM = 2_000
"""Candidates with widgets for every message are not asked to open this many or more: it takes minutes and gigabytes."""


def main() -> None:
    """Measure in processes of their own, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--measure", nargs=3, metavar=("CANDIDATE", "CASE", "RESULT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        candidate, case, result = options.measure
        Probe(CANDIDATES[candidate][1](), case, Path(result)).run()
        return
    report = "\n".join(tables(options.runs))
    print(report)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{report}\n\n{MARKS[1]}{after}", encoding="utf-8")


def tables(runs: int) -> Iterator[str]:
    """The report, line by line."""
    sizes = {case: f"{len(text_of(case)) / 1000:.1f} KB" for case in STREAMS}
    yield f"{machine()}; medians of {runs} runs."
    yield ""
    yield f"Streamed: a list of 120 items ({sizes['list']}) and a code block of 160 functions ({sizes['code']})."
    yield "*Late* is how long after the last piece all text was on the screen; the lag is p50 / p95 in milliseconds."
    yield ""
    yield "| design | list: CPU s | lag | late s | code: CPU s | lag | late s |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for key, (name, _) in CANDIDATES.items():
        cells = [cell for case in STREAMS for cell in stream_cells(medians(key, case, runs))]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield "Opening a conversation of mixed messages: seconds to the first paint / MB of memory it took."
    yield ""
    yield f"| design | {' | '.join(f'{count:,} messages' for count in OPENINGS)} |"
    yield f"|---|{'--:|' * len(OPENINGS)}"
    for key, (name, _) in CANDIDATES.items():
        cells = [opening_cell(key, count, runs) for count in OPENINGS]
        yield f"| {name} | {' | '.join(cells)} |"


def stream_cells(result: dict[str, float]) -> list[str]:
    """CPU, lag and lateness of one stream."""
    return [f"{result['cpu']:.2f}", f"{result['p50']:.1f} / {result['p95']:.1f}", f"{result['late']:.2f}"]


def opening_cell(candidate: str, count: int, runs: int) -> str:
    """Time and memory of one opening."""
    if count > SLOW_FROM and candidate != "transcript":
        return "not run"
    result = medians(candidate, str(count), 1 if count >= SLOW_FROM and candidate != "transcript" else runs)
    return f"{result['seconds']:.2f} / {result['megabytes']:.0f}" if result else f"over {TIMEOUT:.0f} s"


def medians(candidate: str, case: str, runs: int) -> dict[str, float]:
    """Each figure's median; empty when a run did not end in time."""
    results = [measure(candidate, case) for _ in range(runs)]
    if not all(results):
        return {}
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def measure(candidate: str, case: str) -> dict[str, float]:
    """One candidate in one case; empty when it did not end in time."""
    return measured_on_a_terminal([sys.executable, __file__, "--measure", candidate, case])


def measured_on_a_terminal(program_and_case: list[str]) -> dict[str, float]:
    """What an app writes into the file named last, on a pseudo-terminal that nobody reads; empty: it took too long."""
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", CELLS[1], CELLS[0], 0, 0))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [*program_and_case, str(result)]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        process = subprocess.Popen(command, stdin=program, stdout=program, stderr=program, env=environment)
        os.close(program)
        threading.Thread(target=drain, args=(terminal,), daemon=True).start()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return {}
        figures: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
        return figures


def drain(terminal: int) -> None:
    """Read a terminal's output until its program has gone."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        os.close(terminal)


class Probe(App[None]):
    """Shows one candidate, measures one case, writes the figures and leaves."""

    def __init__(self, candidate: Candidate, case: str, result: Path) -> None:
        super().__init__()
        self._candidate, self._case, self._result = candidate, case, result

    def compose(self) -> ComposeResult:
        """The candidate alone."""
        yield self._candidate.widget

    def on_ready(self) -> None:
        """Begin once the first screen is there."""
        self.run_worker(self._measure())

    async def _measure(self) -> None:
        await asyncio.sleep(0.3)
        figures = await (self._stream() if self._case in STREAMS else self._open(int(self._case)))
        self._result.write_text(json.dumps(figures), encoding="utf-8")
        self.exit()

    async def _stream(self) -> dict[str, float]:
        text = text_of(self._case)
        await self._candidate.begin()
        await self._painted()
        lags: list[float] = []
        probe = asyncio.create_task(watch_lag(lags))
        cpu, begin = time.process_time(), time.perf_counter()
        for number, start in enumerate(range(0, len(text), PIECE)):
            await asyncio.sleep(max(begin + number / PIECES_PER_SECOND - time.perf_counter(), 0))
            await self._candidate.append(text[start : start + PIECE])
        last = begin + (len(text) / PIECE) / PIECES_PER_SECOND
        await self._candidate.finish()
        await self._painted()
        probe.cancel()
        lags.sort()
        return {
            "cpu": time.process_time() - cpu,
            "late": max(time.perf_counter() - last, 0.0),
            "p50": 1000 * lags[len(lags) // 2],
            "p95": 1000 * lags[int(len(lags) * 0.95)],
        }

    async def _open(self, count: int) -> dict[str, float]:
        items = mixed_messages(count)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        await self._candidate.open(items)
        await self._painted()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024}

    async def _painted(self) -> None:
        """Wait for a paint that begins after everything asked for so far."""
        painted = asyncio.Event()
        self._candidate.widget.call_after_refresh(painted.set)
        await painted.wait()
        await asyncio.sleep(0)


async def watch_lag(lags: list[float]) -> None:
    """Note by how much short sleeps come late, in seconds."""
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(PROBE_SECONDS)
        lags.append(time.perf_counter() - begin - PROBE_SECONDS)


def text_of(case: str) -> str:
    """The text that is streamed."""
    if case == "list":
        return "\n".join(f"{n}. step **{n}** runs `tool_{n}()` and looks at what came back" for n in range(1, 121))
    functions = (f"def function_{n}(value):\n    # number {n}\n    return value + {n}\n" for n in range(160))
    return f"```python\n{''.join(functions)}```\n"


def mixed_messages(count: int) -> list[TranscriptItem]:
    """Questions and answers of many lengths, with lists and code; the same every time."""
    chance = random.Random(0)
    words = ("token", "by", "the", "model", "reads", "a", "prompt", "and", "continues", "until", "it", "stops")

    def prose(most: int) -> str:
        return " ".join(chance.choice(words) for _ in range(chance.randint(3, most)))

    items = []
    for number in range(count):
        role: Role = "assistant" if number % 2 else "user"
        parts = [prose(40 if role == "user" else 120)]
        if role == "assistant":
            parts += [prose(90) for _ in range(chance.randint(0, 3))]
            if chance.random() < 0.3:
                parts.append("\n".join(f"- {prose(14)}" for _ in range(chance.randint(2, 12))))
            if chance.random() < 0.3:
                parts.append("```python\n" + "\n".join(f"x{n} = {n}" for n in range(chance.randint(2, 30))) + "\n```")
        items.append(TranscriptItem(str(number), role, "\n\n".join(parts)))
    return items


def machine() -> str:
    """Processor, cores and versions."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = model[1] if model else "unknown processor"
    return f"{name}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, Textual {textual.__version__}"


if __name__ == "__main__":
    main()

"""What the chat's widgets cost at 1,000 tokens a second, and how soon 20,000 messages are open, resized, recoloured.

    .venv/bin/python benchmarks/screen.py [--runs 3]

Prints a Markdown table with the machine named above it: medians, and the limits we set ourselves. Each run is a process
of its own on a pseudo-terminal of 120 x 40 cells whose output is read and thrown away. The paint's cost is the
processor's time beyond that of the same loop without a screen to paint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from streaming import machine, measured_on_a_terminal, mixed_messages, watch_lag
from textual import events
from textual.app import App, ComposeResult

from exlchat import paths
from exlchat.config.themes import load_themes
from exlchat.ui.render.themes import textual_theme
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.transcript import Transcript, TranscriptItem

RUNS = 3
TOKENS_PER_SECOND = 1_000
SECONDS = 10
TOKEN = "word "
KEY_EVERY_SECONDS = 0.1
MESSAGES = 20_000
CASES = ("stream", "headless", "open")
LIMITS = {
    "paint": ("paint cost at 1,000 tok/s, beyond a headless run", "% of a core", 8.0),
    "lag": ("event loop lag at 1,000 tok/s, p95", "ms", 30.0),
    "key": ("a key shows at 1,000 tok/s, p95", "ms", 50.0),
    "open": ("20,000 messages open", "s", 0.5),
    "resize": ("20,000 messages at another width", "s", 0.3),
    "theme": ("20,000 messages in another theme", "s", 0.3),
    "kilobytes": ("memory of a message that is not in sight", "KB", 1.0),
}


def main() -> None:
    """Measure in processes of their own, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "RESULT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        case, result = options.measure
        figures = asyncio.run(headless()) if case == "headless" else None
        if figures is None:
            Bench(case, Path(result)).run()
        else:
            Path(result).write_text(json.dumps(figures), encoding="utf-8")
        return
    medians = {case: median_of(case, options.runs) for case in CASES}
    beyond = medians["stream"]["cpu"] - medians["headless"]["cpu"]
    found = {**medians["stream"], **medians["open"], "paint": 100 * beyond / SECONDS}
    print(f"{machine()}; medians of {options.runs} runs.\n")
    print("| what | measured | limit |\n|---|--:|--:|")
    for key, (what, unit, limit) in LIMITS.items():
        print(f"| {what} | {found[key]:.2f} {unit} | {limit:g} {unit} |")


def median_of(case: str, runs: int) -> dict[str, float]:
    """Each figure's median."""
    results = [measured_on_a_terminal([sys.executable, __file__, "--measure", case]) for _ in range(runs)]
    if not all(results):
        raise SystemExit(f"{case}: a run did not end in time")
    return {key: statistics.median(one[key] for one in results) for key in results[0]}


async def headless() -> dict[str, float]:
    """The same loop without a screen: its processor time in seconds."""
    begin = time.process_time()
    texts: list[str] = []

    async def take(text: str) -> None:
        texts.append(text)

    await at_pace(take)
    return {"cpu": time.process_time() - begin}


async def at_pace(take: Callable[[str], Awaitable[None]]) -> None:
    """Tokens at their moments; those that are late come at once."""
    begin = time.perf_counter()
    for number in range(TOKENS_PER_SECOND * SECONDS):
        if (wait := begin + number / TOKENS_PER_SECOND - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        await take("\n\n" if number % 80 == 79 else TOKEN)


class Bench(App[None]):
    """The transcript over the composer."""

    CSS = "Composer { height: 3; }"

    def __init__(self, case: str, result: Path) -> None:
        super().__init__()
        self._case, self._result = case, result
        for theme in load_themes(paths.shipped_themes(), Path("/nowhere"))[0].values():
            self.register_theme(textual_theme(theme))
        self.theme = "exlchat-dark"

    def compose(self) -> ComposeResult:
        """Top and bottom."""
        yield Transcript(id="transcript")
        yield Composer(id="composer")

    def on_ready(self) -> None:
        """Begin once the first screen is there."""
        self.run_worker(self._measure())

    async def _measure(self) -> None:
        await asyncio.sleep(0.3)
        figures = await (self._stream() if self._case == "stream" else self._open())
        self._result.write_text(json.dumps(figures), encoding="utf-8")
        self.exit()

    async def _stream(self) -> dict[str, float]:
        transcript = self.query_one(Transcript)
        transcript.append_message(TranscriptItem("a", "assistant", "", status="streaming"))
        lags: list[float] = []
        keys: list[float] = []
        begin = time.process_time()

        async def take(text: str) -> None:
            transcript.append_text("a", text)

        await at_pace(take)
        cpu = time.process_time() - begin
        others = [asyncio.create_task(watch_lag(lags)), asyncio.create_task(self._type(keys))]
        await at_pace(take)
        for other in others:
            other.cancel()
        return {"cpu": cpu, "lag": 1000 * p95(lags), "key": 1000 * p95(keys)}

    async def _type(self, keys: list[float]) -> None:
        composer = self.query_one(Composer)
        composer.focus()
        while True:
            await asyncio.sleep(KEY_EVERY_SECONDS)
            begin, before = time.perf_counter(), len(composer.text)
            self.post_message(events.Key("x", "x"))
            while len(composer.text) == before:
                await asyncio.sleep(0.001)
            await self._painted(composer)
            keys.append(time.perf_counter() - begin)

    async def _open(self) -> dict[str, float]:
        transcript, items = self.query_one(Transcript), mixed_messages(MESSAGES)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        opened = await self._timed(lambda: transcript.set_messages(items))
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        transcript.scroll_home(animate=False)
        await self._painted(transcript)

        def narrower() -> None:
            transcript.styles.width = 70

        def lighter() -> None:
            self.theme = "exlchat-light"

        resized = await self._timed(narrower)
        themed = await self._timed(lighter)
        return {"open": opened, "resize": resized, "theme": themed, "kilobytes": more / MESSAGES}

    async def _timed(self, work: Callable[[], None]) -> float:
        begin = time.perf_counter()
        work()
        await self._painted(self.query_one(Transcript))
        return time.perf_counter() - begin

    async def _painted(self, widget: Transcript | Composer) -> None:
        painted = asyncio.Event()
        widget.call_after_refresh(painted.set)
        await painted.wait()


def p95(values: list[float]) -> float:
    """The value that 95 % are not above."""
    return sorted(values)[int(len(values) * 0.95)]


if __name__ == "__main__":
    main()

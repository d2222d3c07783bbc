"""The table of decode targets: random models of known shapes on this machine's GPU, each row beside what it should be.

    python benchmarks/decode.py [--only 8b,plain,1b,70b,mixes] [--json FILE]

What `exlchat bench` measures, for the models of the table. Prints the report of each model to standard error as it
comes, and the table at the end; all samples go to the JSON file. 70B is measured with 10 and with 2 layers, whose
difference is 8 layers without embedding, head and sampling. Shares of the limit are of the copy bandwidth measured in
the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from exlchat.cli.bench.table import render
from exlchat.engine.bench.figures import BenchSettings, Figure, Report
from exlchat.engine.bench.measure import benchmark
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape

MIX = "4.1bpw"
OTHER_MIXES = ("2.5bpw", "3bpw", "5bpw", "6bpw", "8bpw", "gptq-g128", "gptq-g128-actorder")
WHOLE = BenchSettings(device="cuda")
SHORT = BenchSettings(device="cuda", kv_caches=("fp16",), contexts=(128,), turn_cached=128)
# What cards before sm_90 run, on this one: every kernel of the step waits for the end of the one before it.
PLAIN = replace(SHORT, dependent_launch=False)
PARTS = ("8b", "plain", "1b", "70b", "mixes")

Measure = Callable[[str, str, BenchSettings], Report]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    least: str
    aim: str
    measured: str
    spread: str = ""
    of_copy: str = ""


def main() -> None:
    """Measures what was asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the table, with commas between them")
    parser.add_argument("--json", type=Path, help="write every report with all samples")
    typed = parser.parse_args()
    reports: dict[str, Report] = {}

    def measure(shape: str, mix: str, settings: BenchSettings) -> Report:
        name = f"{shape} {mix}" + (" plain" if settings.dependent_launch is False else "")
        report = reports[name] = run(shape, mix, settings)
        if typed.json is not None:
            content = {name: done.to_json() for name, done in reports.items()}
            typed.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return report

    makers = dict(zip(PARTS, (rows_of_8b, rows_of_plain, rows_of_1b, rows_of_70b, rows_of_mixes), strict=True))
    rows = [row for part in typed.only.split(",") for row in makers[part](measure)]
    print_table(rows, next(iter(reports.values())))


def run(shape: str, mix: str, settings: BenchSettings) -> Report:
    """The report of one random model, printed to standard error when it is complete."""
    sys.stderr.write(f"{shape}, {mix}\n")

    def open_model() -> RandomCheckpoint:
        return RandomCheckpoint(named_shape(shape), parse_mix(mix), device="cuda")

    report = Report(settings)
    for result in benchmark(open_model, settings, lambda _text: None):
        report.add(result)
    report.complete = True
    sys.stderr.write(render(report) + "\n")
    return report


def rows_of_8b(measure: Measure) -> list[Row]:
    """Everything that is asked of the 8B in one run."""
    report = measure("llama-8b", MIX, WHOLE)
    sampled = report.find("sampled", 128, "fp16")
    share = None if sampled is None else report.sampled_share(sampled)
    memory = report.memory[0]
    rows = [
        rate_row("8B, EXL2 4.1 bpw, 6-bit head, context 128", "720", "880", report, report.find("decode", 128, "fp16")),
        rate_row("8B at 16k context, FP16 cache", "480", "620", report, report.find("decode", 16384, "fp16")),
        rate_row("8B, prefill of 2048 tokens", "30,000", "42,000", report, report.find("prefill", 2048)),
        Row(
            "8B, temperature, top-k, top-p, min-p over greedy", "95 %", "99 %", "-" if share is None else f"{share:.1%}"
        ),
        turn_row(report.find("turn", 8192, "fp16")),
        Row("8B, memory beyond weights and cache", "1 GB", "0.5 GB", f"{memory.beyond / 1e9:.2f} GB"),
    ]
    rows += [
        rate_row(f"8B at {figure.tokens:,}, {figure.kv_cache} cache", "", "", report, figure)
        for figure in report.figures
        if figure.kind == "decode" and figure.kv_cache != "fp16"
    ]
    return rows


def rows_of_plain(measure: Measure) -> list[Row]:
    """The 8B as 30- and 40-series cards run it."""
    report = measure("llama-8b", MIX, PLAIN)
    return [rate_row("8B without dependent launch, context 128", "550", "670", report, report.find("decode", 128))]


def rows_of_1b(measure: Measure) -> list[Row]:
    """The 1B at a short context."""
    report = measure("llama-1b", MIX, SHORT)
    return [rate_row("1B, 4.1 bpw, context 128", "2,500", "4,000", report, report.find("decode", 128))]


def rows_of_70b(measure: Measure) -> list[Row]:
    """One layer of the 70B, from the difference of two cuts."""
    ten, two = (measure(f"llama-70b-{layers}layers", MIX, SHORT) for layers in (10, 2))
    longer, shorter = ten.find("decode", 128), two.find("decode", 128)
    what, least, aim = "70B shape, 4.1 bpw, a layer", "80 % of the limit", "88 %"
    if longer is None or shorter is None or longer.bytes_per_token is None or shorter.bytes_per_token is None:
        return [Row(what, least, aim, "not measured")]
    seconds = 1 / longer.median - 1 / shorter.median
    share = (longer.bytes_per_token - shorter.bytes_per_token) / seconds / copy_rate(ten)
    return [Row(what, least, aim, f"{seconds / 8 * 1e6:.1f} us", f"± {longer.spread:.1%}", f"{share:.0%}")]


def rows_of_mixes(measure: Measure) -> list[Row]:
    """The 8B in other formats, each against its own limit."""
    rows = []
    for mix in OTHER_MIXES:
        report = measure("llama-8b", mix, SHORT)
        figure = report.find("decode", 128)
        rows.append(rate_row(f"8B, {mix}, context 128", "60 % of the limit", "80 %", report, figure))
    return rows


def rate_row(what: str, least: str, aim: str, report: Report, figure: Figure | None) -> Row:
    """A row of tokens a second."""
    if figure is None:
        return Row(what, least, aim, "not measured")
    share = report.of_copy(figure)
    of_copy = "" if share is None else f"{share:.0%}"
    return Row(what, least, aim, f"{figure.median:,.0f} tok/s", f"± {figure.spread:.1%}", of_copy)


def turn_row(figure: Figure | None) -> Row:
    """A turn's time to the first token."""
    what = "8B, 50 new tokens on 8k cached, to the first token"
    if figure is None:
        return Row(what, "20 ms", "10 ms", "not measured")
    return Row(what, "20 ms", "10 ms", f"{figure.median * 1e3:.1f} ms", f"± {figure.spread:.1%}")


def copy_rate(report: Report) -> float:
    """Bytes a second."""
    assert report.setting is not None
    return report.setting.copy_rate


def print_table(rows: list[Row], report: Report) -> None:
    """Markdown, with the machine above it."""
    assert report.setting is not None
    setting, runs = report.setting, report.settings.runs
    print(f"\n{setting.device_name}, torch {torch.__version__}, CUDA {setting.cuda}; copy bandwidth", end=" ")
    print(f"{setting.copy_rate / 1e12:.2f} TB/s; medians of {runs} runs, spread is half their range.\n")
    print("| | at least | aim | measured | spread | of the copy |\n|---|--:|--:|--:|--:|--:|")
    for row in rows:
        print(f"| {row.what} | {row.least} | {row.aim} | {row.measured} | {row.spread} | {row.of_copy} |")


if __name__ == "__main__":
    main()

"""`exlchat evaluate`: perplexity of models, and how far they are from the one that they were made of."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.cli.options import said
from exlchat.cli.parser import Parser, about_group, json_option
from exlchat.cli.typed_options import StartRefusedError
from exlchat.llm.limits import KV_CACHES
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines

if TYPE_CHECKING:
    from exlchat.engine.evaluate.run import Report

_ABOUT = """Measure models on the same tokens: perplexity, and beside a reference the
divergence from it, with errors and quantiles, and how often both find the same
token likeliest. All of a model's formats are read; one layer at a time is in
memory, in float32. Every token of a window counts, so that figures differ from
those of programs that count the second half only."""
_EPILOG = """examples:
  exlchat evaluate ~/models/8B-4bpw ~/models/8B-6bpw --reference ~/models/8B
  exlchat evaluate MODEL --reference MODEL --kv-cache q8,q4
  exlchat evaluate MODEL --text wiki.test.raw --tokens 256k --json

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


def build_parser() -> argparse.ArgumentParser:
    from exlchat.cli.convert.command import tokens_typed

    parser = Parser("exlchat evaluate", _ABOUT, _EPILOG, "exlchat evaluate MODEL... [options]")
    models = parser.add_argument_group("models")
    models.add_argument("models", metavar="MODEL", type=Path, nargs="+", help="folders of one tokenizer")
    models.add_argument("--reference", metavar="MODEL", type=Path, help="what they are compared with")
    models.add_argument("--kv-cache", metavar="TYPE,...", type=said(_kinds), default=(), help="caches to try, too")
    text = parser.add_argument_group("text")
    text.add_argument("--text", metavar="FILE", type=Path, help="a text of yours, not the bundled one")
    text.add_argument("--tokens", metavar="N", type=said(tokens_typed), default=32 * 1024, help="of it (default: 32k)")
    text.add_argument(
        "--context", metavar="N", type=said(tokens_typed), default=2048, help="tokens of a window (default: 2k)"
    )
    text.add_argument(
        "--device", metavar="NAME", choices=("auto", "cpu", "cuda"), default="auto", help="auto (default), cpu or cuda"
    )
    results = parser.add_argument_group("results")
    json_option(results)
    results.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw divergence against size")
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Raises `ModelError` or `StartRefusedError` in one line."""
    typed = build_parser().parse_args(arguments)
    if typed.plot is not None and importlib.util.find_spec("pygal") is None:
        raise StartRefusedError("--plot needs the package pygal; install it with: pip install 'exlchat[plot]'")
    lines = ErrorLines()
    with ctrl_c_ends_at_once():
        from exlchat.engine.evaluate.run import Wishes, evaluate
        from exlchat.engine.placement import choose_device

        wishes = Wishes(
            tuple(typed.models),
            choose_device(typed.device),
            reference=typed.reference,
            text=typed.text,
            tokens=typed.tokens,
            context=typed.context,
            kv_caches=typed.kv_cache,
        )

        def show(name: str, done: int, total: int) -> None:
            if lines.live:
                lines.show(f"{name}: layer {done} of {total}")

        try:
            report = evaluate(wishes, show)
        finally:
            lines.clear()
    if typed.plot is not None:
        _draw(report, typed.plot)
    if typed.json:
        return print_json(_as_json(report))
    from exlchat.cli.evaluate.table import render

    return print_lines(render(report))


def _draw(report: Report, file: Path) -> None:
    from exlchat.cli.evaluate.plot import draw

    try:
        file.write_text(draw(report), encoding="utf-8")
    except OSError as error:
        raise StartRefusedError(f"{file}: cannot be written ({(error.strerror or str(error)).lower()})") from None


def _as_json(report: Report) -> dict[str, object]:
    from dataclasses import asdict

    entries = [{**asdict(entry), "model": str(entry.model)} for entry in report.entries]
    reference = None if report.reference is None else str(report.reference)
    text = {"windows": report.windows, "length": report.length, "text": report.text}
    return {**text, "reference": reference, "models": entries}


def _kinds(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    known = [kind for kind in KV_CACHES if kind != "auto"]
    for kind in found:
        if kind not in known:
            raise ValueError(f"{kind!r} is no type of cache; there are {', '.join(known)}")
    return found

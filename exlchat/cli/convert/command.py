"""`exlchat convert`: a float, GPTQ or AWQ model into EXL2 files, resumable, with what each of them lost."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.cli.options import said, whole
from exlchat.cli.parser import Parser, about_group, json_option
from exlchat.cli.typed_options import StartRefusedError
from exlchat.engine.formats.sections import HEAD_RECIPES
from exlchat.llm.limits import KV_CACHES
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines

if TYPE_CHECKING:
    from exlchat.engine.convert.conversion import Step
    from exlchat.engine.convert.run import Written

_ABOUT = """Make EXL2 files of a model in FP32, FP16, BF16, GPTQ or AWQ. What each matrix
loses at each width is measured once, and serves all sizes; then body and head
get the widths that together lose least. One layer at a time is in memory. Stop
at any moment: the same command goes on. The last lines say how far each file,
as it was written, has moved from its source."""
_EPILOG = """examples:
  exlchat convert ~/models/Llama-3.1-8B ~/models/Llama-3.1-8B-exl2 --bits 4
  exlchat convert SOURCE OUT --bits 6,4,3          one folder below OUT for each
  exlchat convert SOURCE OUT --size 5.5GB
  exlchat convert SOURCE OUT --fits 24GB --context 32k --kv-cache q8
  exlchat convert SOURCE --advise --fits 24GB --context 32k
  exlchat convert SOURCE OUT --bits 4 --text my-own-texts.txt

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_TELL_EVERY_SECONDS = 10.0
_CACHES = tuple(kind for kind in KV_CACHES if kind not in ("auto", "fp32"))
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat convert", _ABOUT, _EPILOG, "exlchat convert SOURCE [OUT] [options]")
    model = parser.add_argument_group("model")
    model.add_argument("source", metavar="SOURCE", type=Path, help="folder of the model")
    model.add_argument("out", metavar="OUT", type=Path, nargs="?", help="a new folder")
    size = parser.add_argument_group("size")
    size.add_argument("--bits", metavar="B,...", type=said(_bits), help="bits a weight, from 2 to 8 (default: 4)")
    size.add_argument("--size", metavar="GB", type=said(_bytes), help="of the file, as 5.5GB")
    size.add_argument("--fits", metavar="GB", type=said(_bytes), help="of a card, whose cache is counted too")
    size.add_argument("--context", metavar="N", type=said(tokens_typed), default=8192, help="of --fits (default: 8k)")
    size.add_argument(
        "--kv-cache", metavar="TYPE", choices=_CACHES, default="fp16", help=f"of --fits: {', '.join(_CACHES)}"
    )
    size.add_argument(
        "--advise", action="store_true", help="make nothing; show which bits and caches fit, and what they lose"
    )
    group = parser.add_argument_group("how")
    group.add_argument("--head-bits", metavar="N", type=int, choices=HEAD_RECIPES, help="fixes the bits of the head")
    group.add_argument("--text", metavar="FILE", type=Path, help="calibrate with this text, not with the bundled one")
    group.add_argument("--tokens", metavar="N", type=said(tokens_typed), default=262_144, help="of it (default: 256k)")
    group.add_argument("--work", metavar="DIR", type=Path, help="what is done so far (default: beside OUT)")
    group.add_argument("--verify", action="store_true", help="make one of equal widths too, to compare with")
    group.add_argument(
        "--device", metavar="NAME", choices=("auto", "cpu", "cuda"), default="auto", help="auto (default), cpu or cuda"
    )
    json_option(group)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Raises `ModelError` in one line."""
    parser = build_parser()
    typed = parser.parse_args(arguments)
    if typed.advise and typed.size is not None:
        parser.error("--advise shows sizes for --fits and --bits, not for --size")
    if not typed.advise and [typed.bits, typed.size, typed.fits].count(None) < 2:
        parser.error("of --bits, --size and --fits only one can be kept")
    if typed.advise:
        return _advise(typed)
    if typed.out is None:
        parser.error("OUT is missing: name a new folder for the files, or ask for --advise alone")
    lines = ErrorLines()
    shown = _Progress(lines)

    def stopped() -> None:
        lines.say("stopped; the same command goes on from here")

    try:
        with ctrl_c_ends_at_once(before=stopped):
            from exlchat.engine.convert.advice import bits_that_fit
            from exlchat.engine.convert.run import Wishes, convert
            from exlchat.engine.placement import choose_device

            bits = typed.bits or (4.0,)
            if typed.size is not None:
                bits = ()
            elif typed.fits is not None:
                bits = (bits_that_fit(typed.source, typed.fits, typed.context, typed.kv_cache),)
            wishes = Wishes(
                typed.source,
                typed.out,
                bits,
                choose_device(typed.device),
                size=typed.size,
                head_bits=typed.head_bits,
                text=typed.text,
                tokens=typed.tokens,
                work=typed.work,
                verify=typed.verify,
            )
            written = convert(wishes, shown.show, lines.say)
    finally:
        lines.clear()
    return print_json([_as_json(entry) for entry in written]) if typed.json else print_lines(map(_line, written))


def _advise(typed: argparse.Namespace) -> ExitCode:
    with ctrl_c_ends_at_once():
        from exlchat.cli.convert.advice import render
        from exlchat.engine.convert.advice import advise
        from exlchat.engine.convert.run import work_beside

        card = typed.fits or _free_on_card(typed.device)
        work = typed.work or (None if typed.out is None else work_beside(typed.out))
        advice = advise(typed.source, card, typed.context, work=work, widths=typed.bits or ())
    if typed.json:
        from dataclasses import asdict

        return print_json({"source": str(typed.source), **asdict(advice)})
    source, out = shlex.quote(str(typed.source)), "OUT" if typed.out is None else shlex.quote(str(typed.out))
    command = f"exlchat convert {source} {out} --fits {card / 1e9:.2f}GB --context {typed.context}"
    return print_lines(render(advice, typed.source.name, command))


def _free_on_card(device: str) -> int:
    from exlchat.engine.placement import choose_device, free_memory

    chosen = choose_device(device)
    if chosen.type != "cuda":
        raise StartRefusedError("there is no card here to advise for; say what one has free, such as --fits 24GB")
    return free_memory(chosen)


def _line(written: Written) -> str:
    figures = written.figures
    what = "equal widths" if written.same else str(written.folder)
    assert figures.divergence is not None
    return (
        f"{what}: {written.bytes / 1e6:,.2f} MB, {written.bits:.2f} bits, head {written.head_bits:.2f}; divergence "
        f"{figures.divergence.mean:.4f} (predicted {written.predicted:.4f}), "
        f"perplexity {figures.perplexity:.3f}, same token {100 * figures.same:.1f} %"
    )


def _as_json(written: Written) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(written), "folder": str(written.folder)}


class _Progress:
    """A line a matrix, and how far it is: moving on a terminal, now and then elsewhere."""

    def __init__(self, lines: ErrorLines) -> None:
        self._lines = lines
        self._phase = ""
        self._began = self._told = time.monotonic()
        self._first = 0

    def show(self, step: Step) -> None:
        now = time.monotonic()
        if step.line:
            self._lines.say(step.line)
        if step.phase != self._phase:
            self._phase, self._began, self._first = step.phase, now, step.done
        if not self._lines.live and now - self._told < _TELL_EVERY_SECONDS:
            return
        self._told = now
        done = step.done - self._first
        left = (now - self._began) / done * (step.total - step.done) if done else 0.0
        rest = f", {_duration(left)} left" if done and step.done < step.total else ""
        line = f"{step.phase}: {step.done} of {step.total}{rest}"
        (self._lines.show if self._lines.live else self._lines.say)(line)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _bits(text: str) -> tuple[float, ...]:
    """Numbers with commas between them, each once."""
    try:
        found = {float(part) for part in text.split(",")}
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 4 or 6,4,3") from None
    return tuple(sorted(found, reverse=True))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get(found[2].upper() or "GB") if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size such as 5.5GB or 24GiB")
    return int(float(found[1]) * unit)


def tokens_typed(text: str) -> int:
    """A whole number, or so many thousands of 1,024."""
    return 1024 * whole(1)(text[:-1]) if text.endswith("k") else whole(1)(text)

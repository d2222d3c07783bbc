"""`exlchat bench`: measures, shows progress on stderr and prints the table, also of what a ctrl+c or an error left."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.library.choice import choose_model
from exlchat.app.library.places import library
from exlchat.cli.bench.table import render
from exlchat.cli.options import card_options, kernel_options, said, split_options, whole
from exlchat.cli.parser import Parser, about_group
from exlchat.config.files import load_settings
from exlchat.config.state import load_state
from exlchat.engine.bench.figures import BenchSettings, Report
from exlchat.engine.bench.mixes import Gptq, MeanBits, Mix, layer_recipes, parse_mix
from exlchat.engine.bench.shapes import Shape, named_shape
from exlchat.engine.formats.sections import HEAD_RECIPES
from exlchat.llm.cards import CardWishes
from exlchat.llm.info import ModelError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_text

if TYPE_CHECKING:
    from exlchat.engine.weights.checkpoint import Checkpoint

_ABOUT = """Measure how fast a model runs here: loading, reading prompts (prefill), decoding
with short and long contexts, the time to the first token of a turn, memory.
GB/s are the weights and the cache that a token reads; beside them stands their
share of what copying memory reaches. The table goes to standard output,
progress to standard error; ctrl+c prints what there is so far."""
_EPILOG = """shapes: tiny, llama-1b, llama-8b, llama-70b; cut to fewer layers:
  llama-70b-10layers

mixes:
  4.1bpw                         as the EXL2 converter spends 4.1 bits a weight
  8:0.05g32,5:0.1g128,4:0.85g128 bits:share of the rows, rows in a group
  gptq-g128, gptq-g128-actorder  4 bits, the head in float16

examples:
  exlchat bench                  the model used last, else the bundled guide
  exlchat bench --shape llama-8b --mix 4.1bpw --json 8b.json --plot 8b.svg
  exlchat bench guide --quick
  exlchat bench --shape llama-8b --batch --plot rows.svg   answers side by side

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_QUICK = BenchSettings(kv_caches=("auto",), contexts=(128, 2048), runs=3, new_tokens=32, seconds=15, turn_cached=2048)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_BASES = {
    (False, False): BenchSettings(),
    (False, True): _QUICK,
    (True, False): BenchSettings(kv_caches=("auto",), contexts=(1024,), rows=_ROWS),
    (True, True): BenchSettings(kv_caches=("auto",), contexts=(128,), rows=(1, 2, 4, 8), runs=2, seconds=15),
}
"""What is measured where nothing else is typed: of `--batch`, `--quick`."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model to be made: its sizes, the bits of its layers and of its head, and where to write it, if anywhere."""

    shape: Shape
    mix: Mix
    head_bits: int
    folder: Path | None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One `exlchat bench`.

    Args:
        model: a model folder, or a random model.
        settings: what to measure.
        json_file, plot_file: where results go beside the table.
    """

    model: Path | RandomModel
    settings: BenchSettings
    json_file: Path | None = None
    plot_file: Path | None = None


class _FileError(Exception):
    """A result file cannot be written: one line."""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat bench", _ABOUT, _EPILOG, "exlchat bench [MODEL] [options]")
    model = parser.add_argument_group("model")
    model.add_argument("model", metavar="MODEL", nargs="?", help="model folder, or the word guide")
    model.add_argument("--shape", metavar="NAME", type=said(named_shape), help="a random model of that size instead")
    model.add_argument("--mix", metavar="MIX", type=said(parse_mix), help="bits of its layers (default: 4.1bpw)")
    model.add_argument("--head-bits", metavar="N", type=int, choices=HEAD_RECIPES, help="of its EXL2 head (default: 6)")
    model.add_argument("--write", metavar="DIR", type=Path, help="write it to a new folder and load it from there")
    measure = parser.add_argument_group("measurement")
    measure.add_argument(
        "--device", metavar="NAME", choices=("auto", "cpu", "cuda"), default="auto", help="auto (default), cpu or cuda"
    )
    card_options(measure)
    split_options(measure)
    kernel_options(measure)
    measure.add_argument(
        "--contexts",
        metavar="N,...",
        type=_whole_list,
        help="tokens of prompts and contexts (default: 128,2048,16384; 1024 with --batch)",
    )
    measure.add_argument(
        "--kv-cache", metavar="TYPE,...", type=_words, help="types of the cache, or auto, or all (default)"
    )
    measure.add_argument("--batch", action="store_true", help="measure answers side by side instead, row by row")
    measure.add_argument(
        "--rows", metavar="N,...", type=_whole_list, help="with --batch: how many (default: 1,2,4,8,16,32,64,128)"
    )
    measure.add_argument("--runs", metavar="N", type=whole(1), help="runs of each figure (default: 5)")
    measure.add_argument("--quick", action="store_true", help="one type of cache, contexts to 2048, 3 short runs")
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", type=Path, help="write all samples, with machine and versions")
    results.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw the rates")
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    parser = build_parser()
    return run_bench(bench_options(parser, parser.parse_args(arguments)))


def _whole_list(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, ascending, each once."""
    return tuple(sorted({whole(1)(part) for part in text.split(",")}))


def _words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(text.split(","))


def bench_options(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> BenchOptions:
    """What was typed. Options that contradict each other end the program with the parser's one line.

    Raises:
        ModelError: there is no such model folder.
        SettingsError: settings.toml is wrong.
    """
    extension = load_settings().extension if typed.extension is None else typed.extension
    if typed.rows is not None and not typed.batch:
        parser.error("--rows is for --batch; give that too")
    base = _BASES[typed.batch, typed.quick]
    settings = BenchSettings(
        device=typed.device,
        cards=CardWishes(typed.cards or (), typed.split, typed.reserve or (), typed.host_layers, typed.tensor_parallel),
        extension=extension,
        quantize_head=typed.quantize_head,
        kv_caches=typed.kv_cache or base.kv_caches,
        contexts=typed.contexts or base.contexts,
        runs=typed.runs or base.runs,
        new_tokens=base.new_tokens,
        turn_cached=base.turn_cached,
        rows=typed.rows or base.rows,
    )
    model = _folder(typed.model) if typed.shape is None else _random(parser, typed)
    if typed.shape is None:
        for option, value in (("--mix", typed.mix), ("--head-bits", typed.head_bits), ("--write", typed.write)):
            if value is not None:
                parser.error(f"{option} is for a random model; give its --shape too")
    return BenchOptions(model, settings, typed.json, typed.plot)


def _folder(argument: str | None) -> Path:
    state, _ = load_state()
    last_used = Path(state.last_model) if state.last_model else None
    return choose_model(argument, last_used=last_used, bundled=paths.bundled_model(), library=library).path


def _random(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> RandomModel:
    if typed.model is not None:
        parser.error("give a MODEL or a --shape, not both")
    mix: Mix = typed.mix or MeanBits(4.1)
    if isinstance(mix, Gptq) and typed.head_bits is not None:
        parser.error("--head-bits is for EXL2; the head of a GPTQ model is float16")
    shape: Shape = typed.shape
    try:
        if not isinstance(mix, Gptq):
            layer_recipes(mix, shape)
    except ValueError as error:
        parser.error(f"--mix does not fit {shape.name}: {error}")
    if typed.write is not None and typed.write.exists():
        raise ModelError(f"{typed.write}: is there already; give a new folder for the random model")
    return RandomModel(shape, mix, typed.head_bits or 6, typed.write)


def run_bench(options: BenchOptions) -> ExitCode:
    """Measures and prints; every failure is one line on stderr and an exit code."""
    lines = ErrorLines()
    report = Report(options.settings)
    try:
        _check_files(options)
        code = _measure(options, report, lines)
        _keep(options, report)
    except _FileError as error:
        lines.say(str(error))
        code = ExitCode.ERROR
    lines.clear()
    printed = print_text(render(report)) if report.figures else ExitCode.OK
    return code or printed


def _measure(options: BenchOptions, report: Report, lines: ErrorLines) -> ExitCode:
    lines.show("starting torch")
    with ctrl_c_ends_at_once(before=lines.clear):
        from exlchat.engine.bench.batches import batch_benchmark
        from exlchat.engine.bench.measure import benchmark
    measured = batch_benchmark if options.settings.rows else benchmark
    try:
        opener = _opener(options, lines)
        for result in measured(opener, options.settings, lines.show, build_cache=paths.folders().cache):
            report.add(result)
            _write_json(options.json_file, report)
        report.complete = True
    except KeyboardInterrupt:
        lines.say("stopped; this is what was measured until then")
        return ExitCode.STOPPED
    except ModelError as error:
        lines.say(str(error))
        return ExitCode.ERROR
    return ExitCode.OK


def _opener(options: BenchOptions, lines: ErrorLines) -> Callable[[], Checkpoint]:
    """How the model is opened; a random one that is to be written is written here."""
    from exlchat.engine.bench.measure import open_folder
    from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
    from exlchat.engine.placement import choose_device

    model = options.model
    if isinstance(model, Path):
        return lambda: open_folder(model)
    device = choose_device(options.settings.device)
    if model.folder is None:
        return lambda: RandomCheckpoint(model.shape, model.mix, model.head_bits, device)
    lines.show(f"writing a random model to {model.folder}")
    RandomCheckpoint(model.shape, model.mix, model.head_bits, device).write(model.folder)
    folder = model.folder
    return lambda: open_folder(folder)


def _check_files(options: BenchOptions) -> None:
    """What would otherwise only be found out after minutes of measuring."""
    for file in (options.json_file, options.plot_file):
        if file is None:
            continue
        if file.is_dir():
            raise _FileError(f"{file}: is a folder; give the name of a file")
        place = file if file.exists() else file.absolute().parent
        if not os.access(place, os.W_OK):
            raise _FileError(f"{file}: cannot be written; {place} is missing or may not be written")
    if options.plot_file is not None and importlib.util.find_spec("pygal") is None:
        raise _FileError("--plot needs the package pygal; install it with: pip install 'exlchat[plot]'")


def _keep(options: BenchOptions, report: Report) -> None:
    _write_json(options.json_file, report)
    if options.plot_file is not None and report.figures:
        from exlchat.cli.bench.plot import draw, draw_batches

        _write(options.plot_file, draw_batches(report) if options.settings.rows else draw(report))


def _write_json(file: Path | None, report: Report) -> None:
    if file is not None:
        _write(file, json.dumps(report.to_json(), indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _FileError(f"{file}: cannot be written ({(error.strerror or str(error)).lower()})") from error

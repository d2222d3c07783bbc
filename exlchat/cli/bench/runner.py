"""`exlchat bench`: measures, shows progress on stderr and prints the table, also of what a ctrl+c or an error left."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.cli.bench.options import BenchOptions
from exlchat.cli.bench.table import render
from exlchat.engine.bench.figures import Report
from exlchat.llm.info import ModelError
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import ErrorLines, print_text

if TYPE_CHECKING:
    from exlchat.engine.weights.checkpoint import Checkpoint


class _FileError(Exception):
    """A result file cannot be written: one line."""


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
    """Fills the report as far as it comes."""
    lines.show("starting torch")
    with ctrl_c_ends_at_once(before=lines.clear):
        from exlchat.engine.bench.measure import benchmark
    try:
        opener = _opener(options, lines)
        for result in benchmark(opener, options.settings, lines.show, build_cache=paths.folders().cache):
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
        from exlchat.cli.bench.plot import draw

        _write(options.plot_file, draw(report))


def _write_json(file: Path | None, report: Report) -> None:
    if file is not None:
        _write(file, json.dumps(report.to_json(), indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _FileError(f"{file}: cannot be written ({(error.strerror or str(error)).lower()})") from error

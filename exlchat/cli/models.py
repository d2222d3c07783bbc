"""`exlchat models`: the library on standard output."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from dataclasses import asdict

from exlchat import paths
from exlchat.app.library.listing import Entry, entries, fit_text, in_order, summary, used_text
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import all_models, in_folder
from exlchat.app.options import AppOptions
from exlchat.cli.options import extension_option, memory_options, some_text, tensor_parallel_option
from exlchat.cli.parser import Parser, about_group, json_option
from exlchat.config.files import read_settings
from exlchat.config.layers import typed as typed_layer
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.interrupts import ctrl_c_ends_at_once
from exlchat.ui.terminal.standard_streams import print_json, print_lines

_ABOUT = """List the models of the folders in settings.toml (model_folders), of the library
that exlchat pull fills, and of the Hugging Face cache: format, bits, size,
context, and whether each fits into the memory that is free now. Only headers
are read."""
_EPILOG = """examples:
  exlchat models
  exlchat models --folder ~/models --context 8192 --kv-cache q8
  exlchat models --json | jq -r '.[] | select(.problem == null).name'

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat models", _ABOUT, _EPILOG, "exlchat models [options]")
    listing = parser.add_argument_group("list")
    listing.add_argument("--folder", metavar="DIR", type=some_text, help="look in and below this folder alone")
    json_option(listing)
    fit = parser.add_argument_group("what is to fit")
    memory_options(fit)
    tensor_parallel_option(fit)
    extension_option(fit)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Prints the library. Raises `ModelError` or `SettingsError` in one line."""
    typed = build_parser().parse_args(arguments)
    names = ("context", "kv_cache", "cards", "reserve", "host_layers", "extension")
    wanted = typed_layer(**{name: getattr(typed, name) for name in names})
    options = AppOptions(None, typed.device, (wanted,), tensor_parallel=typed.tensor_parallel)
    reading = read_settings().require_sound()
    memory = ModelMemory(paths.folders().model_memory)
    if typed.folder is not None:
        found = in_folder(str(paths.expanded(typed.folder).absolute()))
    else:
        found = all_models(reading.settings.model_folders, memory.used_models())
    with ctrl_c_ends_at_once():
        listed = in_order(list(entries(found, memory, options, reading)))
    if typed.json:
        return print_json([_as_json(entry) for entry in listed])
    if not listed:
        return print_lines(["No model was found. exlchat pull org/name fetches one from Hugging Face."])
    now = datetime.datetime.now()
    return print_lines([*(line for entry in listed for line in _lines(entry, now)), *_advice(listed)])


def _advice(listed: Sequence[Entry]) -> list[str]:
    """Where to ask what of a model would fit."""
    for entry in listed:
        problem = entry.card.fit.problem if entry.card.fit else None
        if problem is not None and "weights" in problem and not entry.card.format.startswith("EXL2"):
            return ["exlchat convert MODEL --advise says which bits of it would fit, and with which cache."]
    return []


def _lines(entry: Entry, now: datetime.datetime) -> list[str]:
    told = [part for part in (summary(entry), used_text(entry.used, now) if entry.card.problem is None else "") if part]
    lines = [entry.name, f"    {' · '.join(told)}" if told else "", f"    {fit_text(entry)}"]
    return [line for line in [*lines, f"    {entry.card.path}"] if line.strip()]


def _as_json(entry: Entry) -> dict[str, object]:
    return {"name": entry.name, **asdict(entry.card), "last_used": entry.used}

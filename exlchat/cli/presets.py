"""`exlchat presets`: sampling presets. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from exlchat import paths
from exlchat.chat.presets.other_programs import ImportedPreset, read_file
from exlchat.chat.presets.preset import SamplingPresetError
from exlchat.chat.presets.registry import PRESETS, PresetEntry, keep_preset, place_for
from exlchat.chat.presets.toml_file import table_of_overrides, table_of_preset
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

_ABOUT = """Sampling presets: ways of drawing tokens, as files. Take one with
`exlchat --preset NAME`, or with /preset NAME in the app. Your own lie in the
folder that `exlchat presets path` names, and go before those that come along."""
_EPILOG = """examples:
  exlchat presets list
  exlchat presets show creative
  exlchat presets import "Midnight Enigma.yaml" Universal-Light.json
  exlchat ask --preset precise "How many moons has Mars?"

exit codes:
  0 ok   1 error   2 usage"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat presets", _ABOUT, _EPILOG, "exlchat presets COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat presets")
    listing = command("list", "", "list the presets")
    json_option(listing)
    show = command("show", "NAME", "show the values of one")
    show.add_argument("name", metavar="NAME", help="the preset, by the name of its file")
    json_option(show)
    bring = command("import", "FILE...", "take over presets of other programs")
    bring.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="of text-generation-webui (YAML), KoboldAI or SillyTavern (JSON, text completion), or .toml",
    )
    bring.add_argument("--name", metavar="NAME", help="under this name (of one file)")
    bring.add_argument("--force", action="store_true", help="replace a preset of the same name")
    json_option(bring)
    where = command("path", "[NAME]", "say where your presets lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the preset")
    for one in (listing, show, bring, where, parser):
        about_group(one)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` in one line."""
    parser = build_parser()
    typed = parser.parse_args(arguments)
    lines = ErrorLines()
    commands: dict[str, Callable[[], ExitCode]] = {
        "list": lambda: _list(lines, as_json=typed.json),
        "show": lambda: _show(PRESETS.find(typed.name), as_json=typed.json),
        "import": lambda: _import(parser, typed, lines),
        "path": lambda: _path(typed.name),
    }
    try:
        return commands[typed.command]()
    except SamplingPresetError as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _list(lines: ErrorLines, *, as_json: bool) -> ExitCode:
    listed = PRESETS.all()
    for problem in listed.problems:
        lines.say(problem)
    if as_json:
        return print_json([_summary(one) for one in listed.entries])
    width = max((len(one.id) for one in listed.entries), default=0)
    rows = []
    for one in listed.entries:
        rows.append(f"{one.id:<{width}}  {one_line(one.preset.description, 100)}".rstrip())
        rows.append(f"{'':<{width}}  {one.preset.overrides.describe()}".rstrip())
    return print_lines(row for row in rows if row)


def _summary(one: PresetEntry) -> dict[str, Any]:
    return {
        "id": one.id,
        "description": one.preset.description,
        "path": str(one.path),
        "shipped": one.shipped,
        **table_of_overrides(one.preset.overrides),
    }


def _show(one: PresetEntry, *, as_json: bool) -> ExitCode:
    if as_json:
        return print_json({**_summary(one), "preset": table_of_preset(one.preset)})
    values = one.preset.overrides.describe() or "no values: everything stays as it is"
    lines = [f"{one.id} ({one.path})", one.preset.description, values]
    lines = [one_line(line, 400) for line in lines if line]
    for program, kept in one.preset.foreign.items():
        lines += ["", f"kept of {one_line(program, 60)}, not applied:"]
        named = kept if isinstance(kept, dict) else {"": kept}
        lines += [f"  {one_line(f'{key} {_shown(value)}', 120)}" for key, value in named.items()]
    return print_lines(lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _import(parser: argparse.ArgumentParser, typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    if typed.name is not None and len(typed.files) > 1:
        parser.error("--name goes with one FILE")
    code = ExitCode.OK
    done: list[dict[str, Any]] = []
    for file in typed.files:
        try:
            imported = read_file(file)
            target = _keep(imported, file.stem if typed.name is None else typed.name, force=typed.force)
        except SamplingPresetError as error:
            lines.say(str(error))
            code = ExitCode.ERROR
            continue
        for notice in imported.notices:
            lines.say(notice)
        if (paths.shipped_presets() / target.name).exists():
            lines.say(f"{target.stem} takes the place of the preset that comes along; another name: --name NAME")
        done.append({"id": target.stem, "path": str(target), "kind": imported.kind, "notices": list(imported.notices)})
    shown = print_json(done) if typed.json else print_lines(f"{one['path']} ({one['kind']})" for one in done)
    return code if shown is ExitCode.OK else shown


def _keep(imported: ImportedPreset, name: str, *, force: bool) -> Path:
    target = place_for(name)
    if target.exists() and not force:
        raise SamplingPresetError(
            f"{target} is there already; choose another name with --name NAME, or replace it with --force"
        )
    keep_preset(imported.preset, target)
    return target


def _path(name: str | None) -> ExitCode:
    return print_lines([str(paths.folders().presets if name is None else PRESETS.find(name).path)])

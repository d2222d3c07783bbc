"""`exlchat template`: the prompt formats there are, what a prompt is exactly, formats of other programs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exlchat import paths
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.formats import FORMATS
from exlchat.chat.prompt.formats.presets import PresetError, read_preset
from exlchat.chat.prompt_format import (
    BUILT_IN,
    FORMAT_ENDINGS,
    MODEL_FORMAT,
    MOST_BYTES,
    PromptFormat,
    format_files,
    format_id,
    read_format,
)
from exlchat.cli.options import some_id, some_text
from exlchat.cli.parser import Parser, about_group, json_option
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

_ABOUT = """The prompt formats (templates) there are; the exact prompt that a conversation
becomes, with its token ids; formats of other programs made into your own."""
_EPILOG = """examples:
  exlchat template list
  exlchat template show                    a little talk, in the guide's format
  exlchat template show --conversation last
  exlchat template show llama-3 -m ~/models/llama-3 --conversation last
  exlchat template show --message 3f2a     what that answer was asked
  exlchat template import ~/presets/Alpaca.json

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""
_TRIAL = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat template", _ABOUT, _EPILOG, "exlchat template list|show|import …")
    commands = parser.add_subparsers(dest="command", metavar="list|show|import", required=True, prog="exlchat template")
    listing = commands.add_parser("list", description="List the prompt formats: built in, and files of your own.")
    json_option(listing)
    show = commands.add_parser(
        "show",
        description="Print the exact prompt of a conversation, with its token ids and where each\n"
        "message begins and ends. No weights are read.",
    )
    show.add_argument(
        "name", metavar="NAME|FILE", nargs="?", help="prompt format (default: the conversation's or the model's)"
    )
    show.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        type=some_text,
        help="whose tokens (default: of the model that answers, else the guide)",
    )
    source = show.add_mutually_exclusive_group()
    source.add_argument("--conversation", metavar="ID", type=some_id, help="a conversation as it would be asked now")
    source.add_argument("--message", metavar="ID", type=some_id, help="an answer: the prompt that it had")
    source.add_argument("--messages", metavar="FILE", type=Path, help="JSON list of role and content; - is stdin")
    show.add_argument("--no-generation-prompt", dest="opening", action="store_false", help="without the model's turn")
    json_option(show)
    taking = commands.add_parser(
        "import",
        description="Make a format of an instruction template of text-generation-webui (YAML)\n"
        "or of an instruct preset of SillyTavern (JSON), in the templates folder.",
    )
    taking.add_argument("file", metavar="FILE", type=Path, help="the file")
    taking.add_argument("--name", metavar="NAME", type=some_text, help="what to call it (default: as the file)")
    taking.add_argument("--force", action="store_true", help="replace a format of that name")
    for command in (listing, show, taking):
        command.add_argument("-h", "--help", action="help", help="show this and exit")
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    """Carries out the command that was typed. Raises `ModelError` in one line."""
    typed = build_parser().parse_args(arguments)
    if typed.command == "show":
        from exlchat.cli.templates.showing import run_show

        return run_show(typed)
    lines = ErrorLines()
    try:
        return _list(typed.json) if typed.command == "list" else _import(typed, lines)
    except (PromptError, PresetError) as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _list(json_wanted: bool) -> ExitCode:
    rows = [
        _described(one.name, one.about, one.models, BUILT_IN[one.name])
        for one in sorted(FORMATS, key=lambda one: one.name)
    ]
    folder = paths.folders().templates
    for name in format_files(folder):
        file = next(file for ending in FORMAT_ENDINGS if os.path.lexists(file := folder / f"{name}{ending}"))
        try:
            rows.append({**_described(name, "a file of your own", "", read_format(file)), "file": str(file)})
        except PromptError as error:
            rows.append({"name": name, "about": "a file of your own", "file": str(file), "problem": str(error)})
    if json_wanted:
        return print_json(rows)
    lines = []
    for row in rows:
        lines.append(one_line(str(row["name"]), 80))
        lines.append("    " + one_line(str(row.get("problem") or row["about"]), 300))
        if row.get("models"):
            lines.append(f"    for {row['models']}")
        if row.get("thinking"):
            kept = ", kept in later prompts" if row["keeps_thinking"] else ""
            lines.append(f"    thoughts {one_line(row['thinking'])}{kept}")
    return print_lines(lines)


def _described(name: str, about: str, models: str, form: PromptFormat) -> dict[str, Any]:
    thinking = f"{form.thinking.opening} … {form.thinking.closing}" if form.thinking else None
    return {
        "name": name,
        "about": about,
        "models": models,
        "stop": list(form.stops()),
        "thinking": thinking,
        "keeps_thinking": form.keeps_thinking,
    }


def _import(typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    file: Path = typed.file
    try:
        found = read_preset(read_text(file, largest=MOST_BYTES, kind="prompt format"))
    except UntrustedFileError as error:
        raise PresetError(str(error)) from None
    except PresetError as error:
        raise PresetError(f"{file}: {error}") from None
    name = _name_for(typed.name, file, found.kind)
    folder = paths.folders().templates
    taken = [other for ending in FORMAT_ENDINGS if (other := folder / f"{name}{ending}").exists()]
    if taken and not typed.force:
        raise PresetError(f"{taken[0]} is there already; choose another with --name NAME, or replace it with --force")
    _try_out(file, found.text, found.ending)
    target = folder / f"{name}{found.ending}"
    paths.atomic_write(target, found.text)
    for other in taken:
        if other != target:
            other.unlink()
    for note in found.notes:
        lines.say(note)
    if found.left_out:
        lines.say(f"left out, because our formats have no place for it: {', '.join(found.left_out)}")
    return print_lines([str(target), f"exlchat --template {name}"])


def _name_for(wanted: str | None, file: Path, kind: str) -> str:
    """What a format is called: as a preset or a persona would be, and never as one that is there without a file.

    Raises:
        PresetError: the name that was asked for is taken by one of those.
    """
    name = format_id(wanted or file.stem)
    if name not in BUILT_IN and name != MODEL_FORMAT:
        return name
    if wanted is not None:
        raise PresetError(f"{name!r} is a built-in format; choose another with --name NAME")
    return format_id(name, kind)


def _try_out(file: Path, text: str, ending: str) -> None:
    """Refuses a template that cannot take three messages: it would refuse every conversation."""
    from exlchat.chat.prompt.formats.table import from_table

    source = from_table(text).source if ending == ".toml" else text
    try:
        PromptFormat(file.stem, source).render(_TRIAL, bos_token="<s>", eos_token="</s>")
    except PromptError as error:
        raise PresetError(f"{file}: {error}") from None

"""`exlchat personas`: personas and cards. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from exlchat import paths
from exlchat.chat.personas import png
from exlchat.chat.personas.card_writing import CARD_FILES, CardFile, Exported, card_file
from exlchat.chat.personas.files import file_bytes, read_file, read_kept_files, read_lorebook
from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.keeping import free_place, keep_persona
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.registry import (
    PERSONAS,
    PersonaEntry,
    files_beside,
    persona_id,
    picture_beside,
)
from exlchat.chat.personas.toml_file import parse_persona, table_of_persona, write_text
from exlchat.chat.personas.zip_members import Member
from exlchat.chat.registry import is_id
from exlchat.cli.options import some_text
from exlchat.cli.parser import Parser, about_group, add_command, json_option
from exlchat.config.files import load_settings
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

_ABOUT = """Personas: who is speaking, as files. A persona has a system prompt and, if you
like, a greeting, examples, sampling values and a lorebook. Character cards are
imported and exported. Your own personas lie in the folder that
`exlchat personas path` names, and go before those that come along."""
_EPILOG = """examples:
  exlchat personas list
  exlchat personas show coder
  exlchat personas new butler
  exlchat personas import seraphina.png
  exlchat personas export seraphina card.png

exit codes:
  0 ok   1 error   2 usage"""
_SHOWN_SEED = 0
"""What `show` draws chance from; a conversation takes a seed of its own."""
_NEW = '''name = {name}
description = "One line for the list"
system = """
You are {{{{char}}}}, talking with {{{{user}}}}. Today is {{{{weekday}}}}, {{{{date}}}}.
"""
# greeting = "What it says first"
# template = "chatml"
# thinking = false
# model = "org/name"

# [sampling]
# temperature = 0.7

# [variables]
# tone = "dry"

# [[examples]]
# user = "A question"
# assistant = "How it answers"
'''


def build_parser() -> argparse.ArgumentParser:
    parser = Parser("exlchat personas", _ABOUT, _EPILOG, "exlchat personas COMMAND [options]")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    command = partial(add_command, commands, "exlchat personas")
    listing = command("list", "", "list the personas")
    json_option(listing)
    show = command("show", "NAME", "show one, with its texts as a conversation gets them")
    _name_argument(show)
    show.add_argument("--user", metavar="NAME", help="what you are called (default: user_name in settings.toml)")
    json_option(show)
    new = command("new", "NAME", "write a new persona file to fill in")
    new.add_argument("name", metavar="NAME", type=some_text, help="its name, of which that of its file is made")
    new.add_argument("--from", dest="base", metavar="NAME", help="begin with a copy of this persona")
    bring = command("import", "FILE...", "take over cards, characters and roles of other programs")
    bring.add_argument("files", metavar="FILE", nargs="+", type=Path, help="PNG, JSON, CHARX, YAML, .md or .toml")
    bring.add_argument("--name", metavar="NAME", help="under this name (of one file)")
    bring.add_argument("--lorebook", metavar="FILE", type=Path, help="with the lorebook of this JSON file")
    bring.add_argument("--force", action="store_true", help="replace a persona of the same name")
    json_option(bring)
    send = command("export", "NAME FILE", "write a persona as a character card")
    _name_argument(send)
    send.add_argument("file", metavar="FILE", type=Path, help="its ending decides: .png, .json, .charx or .toml")
    send.add_argument(
        "--card", metavar="N", type=int, choices=(2, 3), help="version of the card in .json and .charx: 2 or 3"
    )
    send.add_argument("--picture", metavar="FILE.png", type=Path, help="the picture to put the card into")
    send.add_argument("--force", action="store_true", help="replace FILE")
    where = command("path", "[NAME]", "say where your personas lie, or the file of one")
    where.add_argument("name", metavar="NAME", nargs="?", help="the persona")
    for one in (listing, show, new, bring, send, where, parser):
        about_group(one)
    return parser


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the persona, by the name of its file or its own")


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` and `SettingsError`."""
    parser = build_parser()
    typed = parser.parse_args(arguments)
    lines = ErrorLines()
    commands: dict[str, Callable[[], ExitCode]] = {
        "list": lambda: _list(lines, as_json=typed.json),
        "show": lambda: _show(PERSONAS.find(typed.name), typed.user or load_settings().user_name, as_json=typed.json),
        "new": lambda: _new(typed.name, typed.base),
        "import": lambda: _import(parser, typed, lines),
        "export": lambda: _export(parser, typed, lines),
        "path": lambda: _path(typed.name),
    }
    try:
        return commands[typed.command]()
    except PersonaError as error:
        lines.say(str(error))
        return ExitCode.ERROR


def _list(lines: ErrorLines, *, as_json: bool) -> ExitCode:
    listed = PERSONAS.all()
    for problem in listed.problems:
        lines.say(problem)
    if as_json:
        return print_json([_summary(one) for one in listed.entries])
    width = max((len(one.id) for one in listed.entries), default=0)
    return print_lines(f"{one.id:<{width}}  {_told(one)}".rstrip() for one in listed.entries)


def _told(one: PersonaEntry) -> str:
    persona = one.persona
    about = one_line(persona.description or persona.system, 80)
    return about if persona_id(persona.name) == one.id else f"{one_line(persona.name, 40)}: {about}"


def _summary(one: PersonaEntry) -> dict[str, Any]:
    persona = one.persona
    return {
        "id": one.id,
        "name": persona.name,
        "description": persona.description,
        "path": str(one.path),
        "shipped": one.shipped,
        "picture": None if one.picture is None else str(one.picture),
        "files": None if one.files is None else str(one.files),
        "greetings": sum(bool(text.strip()) for text in (persona.greeting, *persona.alternate_greetings)),
        "lorebook_entries": len(persona.lorebook.entries) if persona.lorebook is not None else 0,
    }


def _show(one: PersonaEntry, user: str, *, as_json: bool) -> ExitCode:
    frozen = freeze(one.persona, user=one_line(user, 80), now=datetime.now(), seed=_SHOWN_SEED)
    if as_json:
        table = table_of_persona(one.persona)
        return print_json({**_summary(one), "persona": table, "frozen": frozen.as_json()})
    return print_lines(_described(one, frozen))


def _described(one: PersonaEntry, frozen: FrozenPersona) -> list[str]:
    persona = one.persona
    wanted = {
        "template": persona.template,
        "thinking": persona.thinking,
        "model": persona.model,
    }
    values = [f"{name} {value}" for name, value in wanted.items() if value is not None]
    values = [*filter(None, [persona.sampling.describe()]), *values]
    lines = [f"{persona.name} ({one.path})", persona.description, " · ".join(values)]
    lines = [one_line(line, 400) for line in lines if line]
    parts = [("system prompt", frozen.system)]
    parts += [
        (f"greeting {number}" if number > 1 else "greeting", text) for number, text in enumerate(frozen.greetings, 1)
    ]
    parts += [(f"example, {role}", text) for role, text in frozen.messages()]
    for title, text in parts:
        lines += ["", f"{title}:", *(f"  {line}".rstrip() for line in text.splitlines())]
    if persona.lorebook is not None:
        lines += ["", f"lorebook: {len(persona.lorebook.entries)} entries"]
    beside = [("picture", one.picture), ("files of its card", one.files)]
    lines += [line for title, path in beside if path is not None for line in ("", f"{title}: {path}")]
    return lines


def _new(name: str, base: str | None) -> ExitCode:
    ident = name if is_id(name) and name == name.strip() and " " not in name else persona_id(name)
    one = None if base is None else PERSONAS.find(base)
    target = free_place(ident, with_picture=one is not None and one.picture is not None)
    if one is None:
        text = _NEW.format(name=json.dumps(one_line(name, 80), ensure_ascii=False))
        parse_persona(text, str(target))
    else:
        text = write_text(replace(one.persona, name=one_line(name, 80)))
        _copy_beside(one, target)
    paths.atomic_write(target, text)
    return print_lines([str(target)])


def _import(parser: argparse.ArgumentParser, typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    if typed.name is not None and len(typed.files) > 1:
        parser.error("--name goes with one FILE")
    code = ExitCode.OK
    done: list[dict[str, Any]] = []
    for file in typed.files:
        try:
            imported = read_file(file)
            if typed.lorebook is not None:
                book, about = read_lorebook(typed.lorebook)
                persona = replace(imported.persona, lorebook=book)
                imported = replace(imported, persona=persona, notices=(*imported.notices, *about))
            target, removed = keep_persona(imported, typed.name, force=typed.force)
        except PersonaError as error:
            lines.say(str(error))
            code = ExitCode.ERROR
            continue
        notices = [*imported.notices, *removed]
        for notice in notices:
            lines.say(notice)
        done.append({"id": target.stem, "path": str(target), "kind": imported.kind, "notices": notices})
    shown = print_json(done) if typed.json else print_lines(f"{one['path']} ({one['kind']})" for one in done)
    return code if shown is ExitCode.OK else shown


def _export(parser: argparse.ArgumentParser, typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    file: Path = typed.file
    kind = _card_kind(file)
    if kind is None:
        parser.error(f"the ending of {one_line(str(file), 60)!r} must be one of {', '.join(CARD_FILES)}")
    if typed.card is not None and kind not in ("json", "charx"):
        why = "a .png holds the card in both versions" if kind == "png" else f"a .{kind} holds no card"
        parser.error(f"--card goes with .json and .charx; {why}")
    if typed.picture is not None and kind not in ("png", "charx"):
        parser.error(f"--picture goes with .png and .charx; a .{kind} holds no picture")
    one = PERSONAS.find(typed.name)
    if file.exists() and not typed.force:
        raise PersonaError(f"{file} is there already; choose another name, or replace it with --force")
    exported = _exported_file(one, cast("CardFile", kind), version=typed.card, picture=typed.picture)
    paths.atomic_write_bytes(file, exported.data)
    for notice in exported.notices:
        lines.say(notice)
    return print_lines([str(file)])


def _path(name: str | None) -> ExitCode:
    return print_lines([str(paths.folders().personas if name is None else PERSONAS.find(name).path)])


def _card_kind(file: Path) -> str | None:
    """What kind of file an export writes, by the ending; `None` for one that is not known."""
    ending = file.suffix.lower().removeprefix(".")
    return ending if ending in CARD_FILES else None


def _copy_beside(one: PersonaEntry, target: Path) -> None:
    """Put copies of the picture and the files of `one` beside `target`, the file of a copy of it.

    Raises:
        PersonaError: one of them cannot be read.
        FolderError: nothing can be written there.
    """
    for path, copied in ((one.picture, picture_beside(target)), (one.files, files_beside(target))):
        if path is not None:
            paths.atomic_write_bytes(copied, file_bytes(path))


def _exported_file(
    one: PersonaEntry, kind: CardFile, *, version: Literal[2, 3] | None, picture: Path | None
) -> Exported:
    """The persona as a file of this kind, with the picture and the files that lie beside it.

    Args:
        one: the persona.
        kind: of file.
        version: of the card, as for `card_file`.
        picture: to take in the place of that beside it.

    Raises:
        PersonaError: one of the files cannot be read or used.
    """
    if kind in ("json", "toml"):
        lost = () if one.files is None else (f"{one.files.name} is left out: only .charx and .png hold such files",)
        return Exported(card_file(one.persona, kind, version=version).data, lost)
    files, notices = ((), ()) if one.files is None else _kept_files(one.files)
    beside = one.picture if picture is None else picture
    data = None if beside is None else _picture(beside)
    exported = card_file(one.persona, kind, version=version, picture=data, files=files)
    return Exported(exported.data, (*notices, *exported.notices))


def _kept_files(path: Path) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    try:
        return read_kept_files(path)
    except PersonaError as error:
        raise PersonaError(f"{error}; import the card again with --force, or take that file away") from None


def _picture(path: Path) -> bytes:
    data = file_bytes(path)
    _, problem = png.chunks(data, one_line(str(path), 120))
    if problem is not None:
        raise PersonaError(problem)
    return data

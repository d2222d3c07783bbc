"""What the commands of `exlchat personas` do. Results go to standard output, notices and errors to standard error."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from exlchat import paths
from exlchat.chat.file_ids import is_id
from exlchat.chat.personas.card_writing import CARD_FILES, CardFile
from exlchat.chat.personas.files import read_file, read_lorebook
from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.shelf import ShelvedPersona, all_personas, find_persona, persona_id
from exlchat.chat.personas.toml_file import parse_persona, table_of_persona, write_text
from exlchat.cli.personas.command_line import card_kind
from exlchat.cli.personas.keeping import copy_beside, exported_file, free_place, keep
from exlchat.config.settings import load_settings
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines
from exlchat.untrusted.text import one_line

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


def run_personas(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> ExitCode:
    """Run one command; a failure is one line on standard error. Raises `FolderError` and `SettingsError`."""
    lines = ErrorLines()
    commands: dict[str, Callable[[], ExitCode]] = {
        "list": lambda: _list(lines, as_json=typed.json),
        "show": lambda: _show(find_persona(typed.name), typed.user or load_settings().user_name, as_json=typed.json),
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
    shelf = all_personas()
    for problem in shelf.problems:
        lines.say(problem)
    if as_json:
        return print_json([_summary(one) for one in shelf.personas])
    width = max((len(one.id) for one in shelf.personas), default=0)
    return print_lines(f"{one.id:<{width}}  {_told(one)}".rstrip() for one in shelf.personas)


def _told(one: ShelvedPersona) -> str:
    persona = one.persona
    about = one_line(persona.description or persona.system, 80)
    return about if persona_id(persona.name) == one.id else f"{one_line(persona.name, 40)}: {about}"


def _summary(one: ShelvedPersona) -> dict[str, Any]:
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


def _show(one: ShelvedPersona, user: str, *, as_json: bool) -> ExitCode:
    frozen = freeze(one.persona, user=one_line(user, 80), now=datetime.now(), seed=_SHOWN_SEED)
    if as_json:
        table = table_of_persona(one.persona)
        return print_json({**_summary(one), "persona": table, "frozen": frozen.as_json()})
    return print_lines(_described(one, frozen))


def _described(one: ShelvedPersona, frozen: FrozenPersona) -> list[str]:
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
    one = None if base is None else find_persona(base)
    target = free_place(ident, with_picture=one is not None and one.picture is not None)
    if one is None:
        text = _NEW.format(name=json.dumps(one_line(name, 80), ensure_ascii=False))
        parse_persona(text, str(target))
    else:
        text = write_text(replace(one.persona, name=one_line(name, 80)))
        copy_beside(one, target)
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
            target, removed = keep(imported, typed.name, force=typed.force)
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
    kind = card_kind(file)
    if kind is None:
        parser.error(f"the ending of {one_line(str(file), 60)!r} must be one of {', '.join(CARD_FILES)}")
    if typed.card is not None and kind not in ("json", "charx"):
        why = "a .png holds the card in both versions" if kind == "png" else f"a .{kind} holds no card"
        parser.error(f"--card goes with .json and .charx; {why}")
    if typed.picture is not None and kind not in ("png", "charx"):
        parser.error(f"--picture goes with .png and .charx; a .{kind} holds no picture")
    one = find_persona(typed.name)
    if file.exists() and not typed.force:
        raise PersonaError(f"{file} is there already; choose another name, or replace it with --force")
    exported = exported_file(one, cast("CardFile", kind), version=typed.card, picture=typed.picture)
    paths.atomic_write_bytes(file, exported.data)
    for notice in exported.notices:
        lines.say(notice)
    return print_lines([str(file)])


def _path(name: str | None) -> ExitCode:
    return print_lines([str(paths.folders().personas if name is None else find_persona(name).path)])

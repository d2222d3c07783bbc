"""What `exlchat template list`, `show` and `import` do."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.app.library.choice import choose_model
from exlchat.app.library.places import library
from exlchat.chat.prompt.formats import FORMATS
from exlchat.chat.prompt.formats.presets import PresetError, read_preset
from exlchat.chat.prompt_format import (
    BUILT_IN,
    FORMAT_ENDINGS,
    MODEL_FORMAT,
    MOST_BYTES,
    PromptError,
    PromptFormat,
    choose_format,
    format_files,
    format_id,
    read_format,
)
from exlchat.chat.reproduce import NotReproducibleError
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import StoreError
from exlchat.cli.templates.prompts import MessagesError, messages_of
from exlchat.cli.templates.report import as_json, as_text
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines, print_json, print_lines, print_text
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.cli.templates.conversations import Asked

_TRIAL = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]


def run_template(typed: argparse.Namespace) -> ExitCode:
    """Carries out the command that was typed. Raises `ModelError` in one line."""
    lines = ErrorLines()
    if typed.command == "show" and typed.message is not None and (typed.name is not None or not typed.opening):
        lines.say("--message shows the prompt that an answer had, in its format; leave out NAME and other changes")
        return ExitCode.USAGE
    try:
        if typed.command == "list":
            return _list(typed.json)
        if typed.command == "show":
            return _show(typed, lines)
        return _import(typed, lines)
    except (PromptError, MessagesError, PresetError, StoreError, TurnError, NotReproducibleError) as error:
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


def _show(typed: argparse.Namespace, lines: ErrorLines) -> ExitCode:
    # Imports torch, as reading a model's headers does.
    from exlchat.chat.prompt.layout import lay_out

    asked = _asked(typed)
    for notice in asked.notices:
        lines.say(notice)
    layout = lay_out(asked.engine, asked.messages, asked.form, add_generation_prompt=typed.opening, begun=asked.begun)
    if typed.json:
        shown = as_json(layout, asked.form, asked.engine.info)
        if typed.message is not None:
            shown["as_recorded"] = asked.as_recorded
        return print_json(shown)
    return print_text(as_text(layout, asked.form, asked.engine.info))


def _asked(typed: argparse.Namespace) -> Asked:
    from exlchat.cli.templates.conversations import Asked, asked_for, asked_now
    from exlchat.engine.text.tokenizer_alone import TokenizerAlone

    if typed.message is not None:
        return asked_for(typed.message, typed.model)
    if typed.conversation is not None:
        return asked_now(typed.conversation, typed.name, typed.model)
    messages = messages_of(typed.messages)
    choice = choose_model(typed.model, last_used=None, bundled=paths.bundled_model(), library=library)
    engine = TokenizerAlone(choice.path, bundled=paths.is_bundled(choice.path))
    form, notice = choose_format(engine.info, typed.name, paths.folders().templates)
    return Asked(engine, form, tuple(messages), notices=() if notice is None else (notice,))


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

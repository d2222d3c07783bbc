"""How answers are drawn: values, presets, the panel of them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.composer.other_programs import SET
from exlchat.app.generation_settings import EXPLAINED, NAMES
from exlchat.app.panels.sampling import panel_lines
from exlchat.untrusted.text import did_you_mean, one_line

if TYPE_CHECKING:
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.view import View

command = partial(action.command, topic="How answers are drawn")


@command(
    "preset",
    "Sampling preset",
    "Draw answers of this conversation by a sampling preset; without NAME, list them and show what holds.",
    "/preset",
    "[NAME]",
    after="persona",
    aliases=("/presets",),
)
def preset(view: View, name: str) -> None:
    """Without a name list the presets and what holds; else that preset holds for the answers from here on."""
    from exlchat.chat.presets.preset import SamplingPresetError
    from exlchat.chat.presets.registry import PRESETS

    session = view.session
    if not name:
        listed = PRESETS.all()
        rows = [f"{one_line(one.id, 60)}: {one_line(one.preset.description, 100)}" for one in listed.entries]
        rows += [one_line(problem, 300) for problem in listed.problems]
        now = f"Now: {session.generation.describe()}"
        view.note("\n".join(["/preset NAME chooses one of these:", *rows, now]))
        return
    try:
        found = PRESETS.find(name)
    except SamplingPresetError as error:
        raise NotPossibleError(str(error)) from error
    try:
        session.draw_by(session.generation.with_overrides(found.preset.overrides, found.source))
    except ValueError as error:
        raise NotPossibleError(f"{found.source} is not taken: {error}") from error
    kept = found.preset.not_applied
    not_applied = f"\nNot applied, because answers are not drawn by it here: {kept}" if kept else ""
    view.note(f"Preset {one_line(found.id, 60)}: {session.generation.describe()}{not_applied}")


@command(
    "set",
    "Answer settings",
    "Change how answers are drawn in this conversation, such as temperature 0.7; NAME alone tells of one, or of those "
    "that have these letters; nothing behind it, of what holds.",
    "/set",
    "[NAME VALUE]",
    is_typed=True,
    after="theme",
)
def set_value(view: View, argument: str) -> None:
    session, before = view.session, view.session.generation
    # A value may have spaces and equals signs of its own.
    name, _, value = re.sub(r"[\s=]+", " ", argument.strip(), count=1).partition(" ")
    if name == "parameter":
        # As ollama has it.
        name, _, value = value.partition(" ")
    if (here := SET.get(name)) is not None:
        raise NotPossibleError(f"there is no setting {name}; here: {here}")
    if value:
        session.draw_by(before.with_value(name, value))
        view.note(f"{name} {session.generation.shown(name)}; before, {before.shown(name)}")
    elif name:
        view.note("\n".join(_told(before, name)))
    else:
        view.note(before.describe())


def _told(now: GenerationSettings, name: str) -> list[str]:
    """A line on the setting of that name, or one on each whose name has it in it."""
    wanted = name.casefold().replace("-", "_")
    meant = [wanted] if wanted in NAMES else [one for one in NAMES if wanted in one]
    if not meant:
        raise NotPossibleError(f"there is no setting {one_line(name, 40)}; {did_you_mean(name, NAMES, 'there are')}")
    lines = [f"{one} {now.shown(one)} ({now.source(one)}): {EXPLAINED[one]}" for one in meant]
    return [*lines, f"/set {meant[0] if len(meant) == 1 else 'NAME'} VALUE changes it"]


@command(
    "sampling",
    "Sampling",
    "See and change how the next answers are drawn, by value or by preset, and keep it.",
    "/sampling",
    keys=("f6",),
    aliases=("/params", "/parameters"),
)
def sampling(view: View, _: str) -> None:
    view.note("\n".join(panel_lines(view)))

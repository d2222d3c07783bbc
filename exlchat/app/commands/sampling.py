"""How answers are drawn: values, presets, the panel of them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.panels.sampling import panel_lines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="How answers are drawn")


@command(
    "preset",
    "Sampling preset",
    "Draw answers of this conversation by a sampling preset; without NAME, list them and show what holds.",
    "/preset",
    "[NAME]",
    after="persona",
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
    "Change how answers are drawn in this conversation, such as temperature 0.7; alone, show what holds.",
    "/set",
    "[NAME VALUE]",
    is_typed=True,
    after="theme",
)
def set_value(view: View, argument: str) -> None:
    session = view.session
    # A value may have spaces and equals signs of its own.
    name, _, value = re.sub(r"[\s=]+", " ", argument.strip(), count=1).partition(" ")
    if value:
        session.draw_by(session.generation.with_value(name, value))
    elif name:
        raise NotPossibleError("/set needs a name and a value, such as /set temperature 0.7")
    view.note(session.generation.describe())


@command(
    "sampling",
    "Sampling",
    "See and change how the next answers are drawn, by value or by preset, and keep it.",
    "/sampling",
    keys=("f6",),
)
def sampling(view: View, _: str) -> None:
    view.note("\n".join(panel_lines(view)))

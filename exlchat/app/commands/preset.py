"""What /preset does: say which sampling presets there are, and answer by one from here on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.commands.chat_front import ChatFront


def use_preset(front: ChatFront, name: str) -> None:
    """Without a name list the presets and what holds; else that preset holds for the answers from here on.

    Raises:
        NotPossibleError: there is no such preset, or its file cannot be used.
    """
    from exlchat.chat.presets.preset import SamplingPresetError
    from exlchat.chat.presets.registry import PRESETS

    session = front.session
    if not name:
        listed = PRESETS.all()
        rows = [f"{one_line(one.id, 60)}: {one_line(one.preset.description, 100)}" for one in listed.entries]
        rows += [one_line(problem, 300) for problem in listed.problems]
        now = f"Now: {session.generation.describe()}"
        front.note("\n".join(["/preset NAME chooses one of these:", *rows, now]))
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
    front.note(f"Preset {one_line(found.id, 60)}: {session.generation.describe()}{not_applied}")

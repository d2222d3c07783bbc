"""An author's note: a text that is put into every prompt some messages before its end, until it is taken away.

It is part of how a conversation is spoken to, so it is kept with the message from which on it holds. It wanders: what
stands behind it has to be read again at every turn, so a small depth costs little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

USUAL_DEPTH = 4
"""As in SillyTavern."""
DEEPEST = 10_000
LONGEST = 20_000
"""Characters: what is longer is a text to talk about, and would take the place of the conversation."""
NOTE = "note"
"""Its key in how a conversation is spoken to."""


@dataclass(frozen=True, slots=True)
class Note:
    """One note.

    Args:
        text: as typed; may hold `{{char}}` and `{{user}}`.
        depth: how many messages stand behind it; 0 puts it behind the last one.
        user: what `{{user}}` stands for where no persona says it.
    """

    text: str
    depth: int = USUAL_DEPTH
    user: str = "User"

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("an author's note needs a text")
        if len(self.text) > LONGEST:
            raise ValueError(f"an author's note has at most {LONGEST:,} characters, and this has {len(self.text):,}")
        if not 0 <= self.depth <= DEEPEST:
            raise ValueError(f"the depth of an author's note is 0 to {DEEPEST:,} messages before the end")

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "depth": self.depth, "user": self.user}

    @classmethod
    def from_json(cls, content: object) -> Note | None:
        """What `as_json` wrote; `None` for what is none."""
        if not isinstance(content, dict):
            return None
        text, depth, user = content.get("text"), content.get("depth", USUAL_DEPTH), content.get("user", "User")
        if not isinstance(text, str) or type(depth) is not int or not isinstance(user, str):
            return None
        try:
            return cls(text, depth, user)
        except ValueError:
            return None

    def resolved(self, names: Mapping[str, str]) -> Note:
        """With names in the place of macros; `names` are as of `speaking.speaker_names`."""
        # Most conversations have no note.
        from exlchat.chat.personas.macros import Macros

        values = {"char": names.get("assistant_name", "Assistant"), "user": names.get("user_name", self.user)}
        text = Macros(values, 0).resolve(self.text)
        return replace(self, text=text[:LONGEST]) if text[:LONGEST].strip() else self

    def place(self, roles: Sequence[str]) -> int:
        """Before which of the messages with these roles it stands; their number is behind the last.

        Answers at the end do not count: it was not behind them when they were asked for.
        """
        asked = next((number for number in range(len(roles), 0, -1) if roles[number - 1] == "user"), 0)
        return max(asked - self.depth, 0)


def note_in(settings: Mapping[str, Any] | None) -> Note | None:
    """The note of how a conversation is spoken to, as of `Message`."""
    return None if settings is None else Note.from_json(settings.get(NOTE))

"""What a persona knows and is told only when it is talked about, placed so that nothing before it ever changes.

Other programs put lore near the end of every prompt anew, so that most of the prompt has to be read again. Here an
entry is told once, together with the message that called for it, and stays there. `lore_activation` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from exlchat.chat.model import Message

ALWAYS = 100.0
"""Per cent."""

Position = Literal["before_char", "after_char"]
SelectiveLogic = Literal["and_any", "not_all", "not_any", "and_all"]
SELECTIVE_LOGICS: tuple[SelectiveLogic, ...] = get_args(SelectiveLogic)
"""In the order of SillyTavern's numbers."""


@dataclass(frozen=True, slots=True)
class LoreEntry:
    """One thing to know.

    Args:
        content: what the model is told; may begin with the decorators of the third card specification.
        keys: any of them in the text calls for the entry. One between slashes is a pattern, `/pattern/flags`.
        secondary_keys: of a selective entry.
        name: for people.
        enabled: whether it is ever told.
        selective: whether `secondary_keys` count.
        selective_logic: what of them must be in the text besides a key: any or all of them, not all, or not any.
        constant: told without any key.
        insertion_order: the lower, the earlier.
        priority: the lowest are left out first; `None` goes by `insertion_order`.
        case_sensitive: whether keys are compared letter by letter.
        match_whole_words: whether a key of one word must stand alone.
        use_regex: whether all keys are patterns, those without slashes too.
        position: of a constant entry: before or after what is said of the character.
        hidden_keys: texts that are not told, but call for other entries.
        scan_depth: messages looked through for it; `None` is that of the lorebook.
        probability: per cent; drawn anew with every message that calls for it.
        delay: messages that there must be.
        group: names of groups, with commas between them; of a group one entry is told.
        group_override: whether it goes before others of its groups, the highest `insertion_order` first.
        group_weight: else how likely it is to be the one.
        exclude_recursion: whether texts of other entries do not call for it.
        prevent_recursion: whether its text does not call for others.
        delay_until_recursion: above 0, only texts of other entries call for it, lower numbers first.
        ignore_budget: whether it is told beside the budget.
    """

    content: str
    keys: tuple[str, ...] = ()
    secondary_keys: tuple[str, ...] = ()
    name: str = ""
    enabled: bool = True
    selective: bool = False
    selective_logic: SelectiveLogic = "and_any"
    constant: bool = False
    insertion_order: float = 0.0
    priority: float | None = None
    case_sensitive: bool = False
    match_whole_words: bool = False
    use_regex: bool = False
    position: Position = "after_char"
    hidden_keys: tuple[str, ...] = ()
    scan_depth: int | None = None
    probability: float = ALWAYS
    delay: int = 0
    group: str = ""
    group_override: bool = False
    group_weight: float = 100.0
    exclude_recursion: bool = False
    prevent_recursion: bool = False
    delay_until_recursion: int = 0
    ignore_budget: bool = False


@dataclass(frozen=True, slots=True)
class Lorebook:
    """Entries, and how they are looked for.

    Args:
        entries: in the order of the file; an entry is known by its place in it.
        name: for people.
        description: for people.
        scan_depth: messages looked through, counted from the last; `None` is `USUAL_SCAN_DEPTH`.
        token_budget: what all entries that the model sees may take together; `None` sets no bound.
        recursive_scanning: whether the text of one entry calls for others.
    """

    entries: tuple[LoreEntry, ...] = ()
    name: str = ""
    description: str = ""
    scan_depth: int | None = None
    token_budget: int | None = None
    recursive_scanning: bool = False


@dataclass(frozen=True, slots=True)
class Lore:
    """An entry to be told: its place in the lorebook, and the text without decorators."""

    index: int
    text: str
    position: Position = "after_char"


def told_text(text: str, lore: Sequence[Lore]) -> str:
    """What the model sees of a message with which `lore` is told: the lore, a blank line, the message."""
    return "\n\n".join([*(one.text for one in lore), text])


def text_for_model(message: Message) -> str:
    return told_text(message.text, noted_lore(message))


def noted_lore(message: Message) -> tuple[Lore, ...]:
    """The lore that was told with a message; what is damaged is passed over."""
    noted = message.persona.get("lore") if message.persona is not None else None
    if not isinstance(noted, list):
        return ()
    return tuple(
        Lore(one["entry"], one["text"])
        for one in noted
        if isinstance(one, dict) and isinstance(one.get("entry"), int) and isinstance(one.get("text"), str)
    )

"""A persona as plain frozen values: what is said to the model before a conversation, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from exlchat.chat.personas.lorebook import Lorebook
from exlchat.chat.presets.overrides import SamplingOverrides

ExamplesAs = Literal["messages", "system"]
EXAMPLES_AS: tuple[ExamplesAs, ...] = get_args(ExamplesAs)


class PersonaError(Exception):
    """A persona or card that cannot be used: one line that names the file, what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class Example:
    """One exchange that shows how to answer; `user` is empty where the persona speaks first."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Character:
    """The parts of a character card that become one system prompt.

    Args:
        nickname: stands for `{{char}}` in the place of the name.
        description: who the character is.
        personality: in a few words.
        scenario: where and when.
        post_history: instructions that other programs put behind the conversation; here they end the system prompt,
            where they never move.
    """

    nickname: str = ""
    description: str = ""
    personality: str = ""
    scenario: str = ""
    post_history: str = ""


@dataclass(frozen=True, slots=True)
class Persona:
    """One persona file.

    Texts may hold macros (`macros.py`); `freeze` resolves them.

    Args:
        name: what it is called, and `{{char}}`.
        description: one line for lists; never in a prompt.
        system: the system prompt.
        greeting: what it says first; empty lets the user begin.
        alternate_greetings: other ways to begin.
        examples: exchanges that show how it answers.
        examples_as: whether they are messages before the first one, or stand in the system prompt.
        template: prompt format by name or file.
        sampling: how it answers.
        thinking: whether it thinks first; `None` leaves that to the model.
        model: the model it is meant for, by name or folder.
        variables: macros of its own: name -> text.
        character: of a character card.
        lorebook: what it knows and is told only when it is talked about.
        foreign: what other programs keep in it; never read, always kept. Values that TOML can hold.
    """

    name: str
    description: str = ""
    system: str = ""
    greeting: str = ""
    alternate_greetings: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    examples_as: ExamplesAs = "messages"
    template: str | None = None
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    thinking: bool | None = None
    model: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    character: Character | None = None
    lorebook: Lorebook | None = None
    foreign: Mapping[str, Any] = field(default_factory=dict)

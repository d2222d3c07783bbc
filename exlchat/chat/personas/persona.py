"""A persona as plain frozen values: what is said to the model before a conversation, and how it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from exlchat.chat.personas.lorebook import Lorebook
from exlchat.engine.sampling_settings import SamplingSettings

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
class PersonaSampling:
    """What a persona wants of an answer; `None` leaves a value to whatever holds without it."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        self.apply(SamplingSettings())
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")

    def apply(self, base: SamplingSettings) -> SamplingSettings:
        """`base` with the persona's values in place.

        Raises:
            ValueError: a value out of range, in one line.
        """
        if self.temperature is not None and not math.isfinite(self.temperature):
            raise ValueError(f"temperature is {self.temperature}; it must be a number")
        names = ("temperature", "top_k", "top_p", "min_p")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(base, **given)


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
    sampling: PersonaSampling = field(default_factory=PersonaSampling)
    thinking: bool | None = None
    model: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    character: Character | None = None
    lorebook: Lorebook | None = None
    foreign: Mapping[str, Any] = field(default_factory=dict)

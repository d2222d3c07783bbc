"""A persona with everything resolved, as it is kept in a conversation: later changes of its file change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from exlchat.chat.personas.lore_activation import constant_places, triggered
from exlchat.chat.personas.lorebook import Lore, Lorebook
from exlchat.chat.personas.macros import Macros, clock_values
from exlchat.chat.personas.persona import Character, Example, ExamplesAs, Persona, PersonaError
from exlchat.chat.personas.toml_file import persona_of_table, table_of_persona
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.untrusted.text import one_line

CHARACTER_PROMPT = (
    "Write {{char}}'s next reply in this conversation between {{char}} and {{user}}. Stay in character, "
    "and never speak or act for {{user}}."
)
"""The system prompt of a card that has none of its own, and what `{{original}}` stands for in one that has."""


@dataclass(frozen=True, slots=True)
class FrozenPersona:
    """What of a persona goes into a conversation. No text in it holds a macro any more.

    Args:
        name: of the persona.
        char: what `{{char}}` stood for.
        user: what `{{user}}` stood for.
        seed: from which chance was drawn.
        system: the system text, examples in it if they belong there.
        greetings: the first is the greeting, the others its alternatives; none lets the user begin.
        examples: those that are messages.
        template: prompt format by name or file.
        sampling: how it answers.
        thinking: whether it thinks first; `None` leaves that to the model.
        model: the model it is meant for.
        lorebook: with its texts resolved.
        told: places of lorebook entries that stand in `system`.
    """

    name: str
    char: str
    user: str
    seed: int
    system: str = ""
    greetings: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    template: str | None = None
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    thinking: bool | None = None
    model: str | None = None
    lorebook: Lorebook | None = None
    told: tuple[int, ...] = ()

    def messages(self) -> tuple[tuple[str, str], ...]:
        """The examples as (role, text), without what is empty."""
        return tuple(
            (role, text)
            for example in self.examples
            for role, text in (("user", example.user), ("assistant", example.assistant))
            if text.strip()
        )

    @property
    def source(self) -> str:
        return f"persona {one_line(self.name, 40)}"

    @property
    def system_text(self) -> str:
        values = {"user": self.user, "char": self.char}
        return "\n\n".join(part for part in (self.system, _example_text(self.examples, values)) if part)

    def as_json(self) -> dict[str, Any]:
        plain = Persona(
            self.name,
            system=self.system,
            greeting="",
            alternate_greetings=self.greetings,
            examples=self.examples,
            template=self.template,
            sampling=self.sampling,
            thinking=self.thinking,
            model=self.model,
            lorebook=self.lorebook,
        )
        table = table_of_persona(plain)
        if self.greetings:
            table["greetings"] = table.pop("alternate_greetings")
        return {**table, "char": self.char, "user": self.user, "seed": self.seed, "told": list(self.told)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FrozenPersona:
        """The persona that `as_json` wrote.

        Raises:
            PersonaError: it did not.
        """
        where = "the persona of this conversation"
        table = dict(value)
        table["alternate_greetings"] = table.pop("greetings", [])
        char, user, seed, told = (table.pop(key, None) for key in ("char", "user", "seed", "told"))
        plain = persona_of_table(table, where)
        if not (isinstance(char, str) and isinstance(user, str) and isinstance(seed, int)):
            raise PersonaError(f"{where} is damaged: char, user or seed is missing")
        if not isinstance(told, list) or not all(isinstance(one, int) for one in told):
            raise PersonaError(f"{where} is damaged: told is not a list of numbers")
        return cls(
            plain.name,
            char,
            user,
            seed,
            system=plain.system,
            greetings=plain.alternate_greetings,
            examples=plain.examples,
            template=plain.template,
            sampling=plain.sampling,
            thinking=plain.thinking,
            model=plain.model,
            lorebook=plain.lorebook,
            told=tuple(told),
        )


def freeze(
    persona: Persona,
    *,
    user: str,
    now: datetime,
    seed: int,
    count_tokens: Callable[[str], int] | None = None,
) -> FrozenPersona:
    """Resolve every macro of `persona`, by chance where it says so, and put its texts together.

    Args:
        persona: as read.
        user: what the user is called.
        now: local time, for `{{date}}` and its kin.
        seed: the same seed gives the same.
        count_tokens: tokens of a text. Without it, the constant entries of a lorebook with a token budget are not put
            into the system prompt; `triggered` tells them with the first message.
    """
    character = persona.character
    char = (character.nickname.strip() if character else "") or persona.name
    values = {**clock_values(now), "user": user, "char": char}
    own = Macros(values, seed, angled=character is not None)
    values |= {name: own.resolve(text) for name, text in persona.variables.items()}
    macros = Macros(values, seed, angled=character is not None)
    lorebook = None if persona.lorebook is None else _frozen_lorebook(persona.lorebook, macros)
    lore = () if lorebook is None else _constant_lore(lorebook, count_tokens)
    examples = tuple(Example(macros.resolve(one.user), macros.resolve(one.assistant)) for one in persona.examples)
    told = examples if persona.examples_as == "system" else ()
    greetings = (persona.greeting, *persona.alternate_greetings)
    return FrozenPersona(
        persona.name,
        char,
        user,
        seed,
        system=_system(persona, macros, lore, told),
        greetings=tuple(macros.resolve(text) for text in greetings if text.strip()),
        examples=() if persona.examples_as == "system" else examples,
        template=persona.template,
        sampling=persona.sampling,
        thinking=persona.thinking,
        model=persona.model,
        lorebook=lorebook,
        told=tuple(one.index for one in lore),
    )


def _frozen_lorebook(lorebook: Lorebook, macros: Macros) -> Lorebook:
    entries = []
    for entry in lorebook.entries:
        seen = len(macros.hidden)
        content = macros.resolve(entry.content)
        entries.append(
            replace(
                entry,
                content=content,
                keys=tuple(macros.resolve(key) for key in entry.keys),
                secondary_keys=tuple(macros.resolve(key) for key in entry.secondary_keys),
                hidden_keys=(*entry.hidden_keys, *macros.hidden[seen:]),
            )
        )
    return replace(lorebook, entries=tuple(entries))


def _constant_lore(lorebook: Lorebook, count_tokens: Callable[[str], int] | None) -> tuple[Lore, ...]:
    if lorebook.token_budget is not None and count_tokens is None:
        return ()
    others = frozenset(range(len(lorebook.entries))) - constant_places(lorebook)
    return triggered(_without(lorebook, others), (), count_tokens=count_tokens)


def _without(lorebook: Lorebook, places: frozenset[int]) -> Lorebook:
    entries = tuple(
        replace(entry, enabled=entry.enabled and place not in places) for place, entry in enumerate(lorebook.entries)
    )
    return replace(lorebook, entries=entries)


def _system(persona: Persona, macros: Macros, lore: Sequence[Lore], examples: Sequence[Example]) -> str:
    """The parts of the system prompt in an order that never changes, with a blank line between them."""
    character = persona.character or Character()
    values = dict(macros.values)
    if persona.character is not None:
        macros.values = {**values, "original": macros.resolve(CHARACTER_PROMPT)}
    system = persona.system
    if persona.character is not None and not system.strip():
        system = CHARACTER_PROMPT
    parts = [
        macros.resolve(system),
        *(one.text for one in lore if one.position == "before_char"),
        macros.resolve(character.description),
        _labelled("Personality", macros.resolve(character.personality)),
        _labelled("Scenario", macros.resolve(character.scenario)),
        *(one.text for one in lore if one.position == "after_char"),
        _example_text(examples, macros.values),
        macros.resolve(character.post_history),
    ]
    macros.values = values
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _labelled(label: str, text: str) -> str:
    return f"{label}: {text.strip()}" if text.strip() else ""


def _example_text(examples: Sequence[Example], values: Mapping[str, str]) -> str:
    lines = [
        f"{who}: {text}"
        for example in examples
        for who, text in ((values["user"], example.user), (values["char"], example.assistant))
        if text.strip()
    ]
    return "\n".join([f"How {values['char']} answers, in examples:", *lines]) if lines else ""


__all__ = ["CHARACTER_PROMPT", "ExamplesAs", "FrozenPersona", "freeze"]

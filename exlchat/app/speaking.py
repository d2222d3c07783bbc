"""A persona chosen for one start of the program: frozen, and put behind what was typed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from exlchat.app.chat.own_settings import OwnSettings, layer_of
from exlchat.app.options import AppOptions
from exlchat.chat.model import Message, settings_of
from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.opening import persona_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.registry import PERSONAS
from exlchat.chat.speaking import TurnError


def chosen_persona(wanted: str, *, seed: int | None, user: str) -> FrozenPersona:
    """The persona called `wanted`, frozen now.

    Args:
        wanted: its id, its name or its file.
        seed: from which chance is drawn; `None` takes a fresh one.
        user: what `{{user}}` stands for.

    Raises:
        PersonaError: there is none, or its file cannot be used.
    """
    return freeze(
        PERSONAS.find(wanted).persona,
        user=user,
        now=datetime.now(),
        seed=secrets.randbits(31) if seed is None else seed,
    )


def with_persona(options: AppOptions, persona: FrozenPersona) -> AppOptions:
    """`options` in which the persona decides what was not typed.

    Raises:
        ValueError: what it wishes for contradicts what was typed, in one line.
    """
    return replace(options.with_layer(layer_of(persona, system=persona.system_text)), persona=persona)


def as_spoken(options: AppOptions, branch: Sequence[Message]) -> AppOptions:
    """`options` in which a conversation, and the persona that speaks at its end, decide what was not typed.

    With a persona or a system prompt that was typed, that one speaks no longer and decides nothing.

    Raises:
        TurnError: what was kept of it is damaged, or contradicts what was typed.
    """
    own = OwnSettings.from_json(settings_of(branch))
    try:
        persona = None if options.given("system") is not None else persona_of(branch)
        if persona is not None:
            options = options.with_layer(layer_of(persona))
        return options.with_layer(own.layer) if own.values else options
    except (PersonaError, ValueError) as error:
        raise TurnError(str(error)) from error

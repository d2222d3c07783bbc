"""A persona chosen for one start of the program: frozen, and put behind what was typed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from exlchat.app.options import AppOptions
from exlchat.chat.model import Message
from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.opening import persona_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.shelf import find_persona
from exlchat.chat.turn import TurnError


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
        find_persona(wanted).persona,
        user=user,
        now=datetime.now(),
        seed=secrets.randbits(31) if seed is None else seed,
    )


def with_persona(options: AppOptions, persona: FrozenPersona) -> AppOptions:
    """`options` in which the persona decides what was not typed.

    Raises:
        ValueError: what it wishes for contradicts what was typed, in one line.
    """
    decided = [name for name in persona.sampling.decided() if name not in options.sampling.decided()]
    return replace(
        options,
        persona=persona,
        sampling_sources={**options.sampling_sources, **dict.fromkeys(decided, persona.source)},
        system=persona.system_text if options.system is None else options.system,
        template=options.template or persona.template,
        sampling=options.sampling.over(persona.sampling),
    )


def as_spoken(options: AppOptions, branch: Sequence[Message]) -> AppOptions:
    """`options` in which the persona that speaks at the end of a branch decides what was not typed.

    With a persona or a system prompt that was typed, it speaks no longer and decides nothing.

    Raises:
        TurnError: what was kept of it is damaged, or contradicts what was typed.
    """
    if options.system is not None:
        return options
    try:
        persona = persona_of(branch)
    except PersonaError as error:
        raise TurnError(str(error)) from error
    if persona is None:
        return options
    try:
        sampling = options.sampling.over(persona.sampling)
    except ValueError as error:
        raise TurnError(str(error)) from error
    return replace(options, template=options.template or persona.template, sampling=sampling)

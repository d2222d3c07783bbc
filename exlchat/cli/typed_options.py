"""What was typed on a command line that starts a model, as options: with persona, preset and last model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.app.library.choice import ModelChoice, choose_model
from exlchat.app.library.places import library
from exlchat.app.options import AppOptions
from exlchat.chat.constraints import choice_of
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.config.files import SettingsError, load_settings, unknown_variables
from exlchat.config.kinds import OWN_KEYS
from exlchat.config.layers import Layer
from exlchat.config.layers import typed as typed_layer
from exlchat.config.schema import Settings
from exlchat.config.state import load_state
from exlchat.ext.driver import hidden_cards
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from exlchat.chat.personas.frozen import FrozenPersona


_TYPED = (
    *("context", "kv_cache", "cache_tokens", "cache_gb", "disk_gb", "extension", "quantize_head"),
    *("cards", "reserve", "host_layers"),
    *("system", "template", "context_policy", "seed"),
)
"""Options of the names of their settings."""


class StartRefusedError(Exception):
    """What was asked for cannot be used; one line. Stands for errors of rooms that not every start enters."""


def app_options(
    parser: argparse.ArgumentParser,
    typed: argparse.Namespace,
    model: str | None,
    *,
    theme: str | None = None,
    continue_last: bool = False,
    message: str | None = None,
) -> AppOptions:
    """The options of a start, with what the persona, the preset and the last start say where nothing was typed.

    Ends the program with a usage error where values contradict each other.

    Raises:
        ModelError: there is no such model.
        StartRefusedError: the persona or the preset cannot be used.
    """
    options = AppOptions(
        None,
        device=typed.device,
        split=typed.split,
        tensor_parallel=typed.tensor_parallel,
        layers=(_typed(parser, typed, theme),),
        continue_last=continue_last,
        first_message=message,
    )
    if typed.preset is not None:
        options = _with_preset(options, typed.preset)
    persona = None if typed.persona is None else _persona(typed.persona, typed.seed)
    # Of those commands alone that a server may answer.
    if getattr(typed, "remote", None) is not None:
        return _for_remote(replace(options, notices=tuple(unknown_variables(os.environ))), typed, model, persona)
    if any(getattr(typed, name, None) is not None for name in ("remote_key", "remote_level")):
        parser.error("--remote-key and --remote-level are of a server; name it with --remote")
    state, notice = load_state()
    last_used = Path(state.last_model) if state.last_model else None
    hidden = hidden_cards() if typed.device == "auto" else None
    choose = partial(choose_model, last_used=last_used, bundled=paths.bundled_model(), library=library)
    choice = choose(model) if model or persona is None or persona.model is None else _preferred(persona, choose)
    told = (line for line in (notice, choice.notice, hidden and f"on the CPU: {hidden}") if line)
    options = replace(options, model_path=choice.path, notices=(*unknown_variables(os.environ), *told))
    return _spoken_by(options, persona)


def _spoken_by(options: AppOptions, persona: FrozenPersona | None) -> AppOptions:
    if persona is None:
        return options
    from exlchat.app.speaking import with_persona

    try:
        return with_persona(options, persona)
    except ValueError as error:
        raise StartRefusedError(f"with persona {persona.name}: {error}") from error


def _for_remote(
    options: AppOptions, typed: argparse.Namespace, model: str | None, persona: FrozenPersona | None
) -> AppOptions:
    """A server answers. Raises `ModelError` where it cannot be meant, `StartRefusedError` as `app_options`."""
    # No other start needs it.
    from exlchat.app.library.remotes import remote_called

    wanted = remote_called(
        typed.remote,
        model=model,
        key=typed.remote_key,
        level=typed.remote_level,
        context=typed.context,
        template=typed.template is not None,
    )
    return _spoken_by(replace(options, remote=wanted), persona)


def _preferred(persona: FrozenPersona, choose: Callable[[str | None], ModelChoice]) -> ModelChoice:
    """The model that a persona is meant for; where that is not here, what would be taken without it, and a line."""
    try:
        return choose(persona.model)
    except ModelError as error:
        choice = choose(None)
        lines = (f"{persona.name} is meant for another model: {error}", choice.notice)
        return replace(choice, notice="; ".join(line for line in lines if line))


def _persona(wanted: str, seed: int | None) -> FrozenPersona:
    from exlchat.app.speaking import chosen_persona
    from exlchat.chat.personas.persona import PersonaError

    try:
        return chosen_persona(wanted, seed=seed, user=_user_name())
    except PersonaError as error:
        raise StartRefusedError(str(error)) from error


def _user_name() -> str:
    try:
        return load_settings().user_name
    except SettingsError:
        # What reads the rest of the settings says what is wrong with them.
        return Settings().user_name


def _typed(parser: argparse.ArgumentParser, typed: argparse.Namespace, theme: str | None) -> Layer:
    """What was typed, in the place of settings and of what a preset or a persona says."""
    try:
        wishes = SamplingOverrides(
            **{name: getattr(typed, name) for name in (*OWN_KEYS, "max_tokens")},
            **_spoken(typed),
            **_sampled(typed.sample),
        )
    except ValueError as error:
        parser.error(str(error))
    draft_model = str(typed.draft) if isinstance(typed.draft, Path) else None
    held = {name: getattr(typed, name) for name in _TYPED}
    return typed_layer(**wishes.given(), **held, draft_model=draft_model, theme=theme)


def _with_preset(options: AppOptions, name: str) -> AppOptions:
    from exlchat.chat.presets.preset import SamplingPresetError
    from exlchat.chat.presets.registry import PRESETS

    try:
        found = PRESETS.find(name)
    except SamplingPresetError as error:
        raise StartRefusedError(str(error)) from error
    try:
        return options.with_layer(Layer("preset", found.preset.overrides.decided(), found.source))
    except ValueError as error:
        raise StartRefusedError(f"with {found.source}: {error}") from error


def _spoken(typed: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if typed.draft is not None:
        values["draft"] = "auto" if isinstance(typed.draft, Path) else typed.draft
    if not hasattr(typed, "ban"):
        return values
    values |= {name: None if getattr(typed, name) is None else tuple(getattr(typed, name)) for name in ("stop", "ban")}
    values |= {
        name: getattr(typed, name) for name in ("min_tokens", "begin", "thinking_budget", "negative", "logprobs")
    }
    choice = None if typed.choice is None else choice_of(typed.choice)
    return {**values, "constraint": typed.schema or typed.regex or typed.grammar or choice}


def _sampled(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The values of `--sample`; what has an option of its own is said by that one."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"--sample names {name} twice; keep one of them")
        values[name] = value
    return values

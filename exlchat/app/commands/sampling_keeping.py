"""How answers are drawn now, written down: as a preset, or as what every start begins with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.generation_settings import NAMES, at_start
from exlchat.chat.answer_option_values import ANSWER_OPTIONS, usual
from exlchat.chat.presets.control_values import to_plain
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.registry import keep_preset
from exlchat.config.files import SettingsError, read_settings, save_setting
from exlchat.config.kinds import CONTROL_NAMES
from exlchat.config.schema import SETTINGS
from exlchat.llm.controls import CONTROLS

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.app.generation_settings import GenerationSettings

_KEPT = (*CONTROL_NAMES, *(name for name in NAMES if name in SETTINGS))
"""What settings.toml can say."""
_OF_A_SESSION = ("think", "heal", "logprobs", "draft")
"""What no preset says."""
NOT_KEPT = "Nothing of this session is saved: no preset and no default is written"


def save_as_preset(now: GenerationSettings, target: Path) -> str:
    """Write the values of a preset into the file `target`, in the place of one that is there; a line about it.

    Raises:
        NotPossibleError: the values are none that a preset can have.
        FolderError: it cannot be written.
    """
    # What is off is said in one word; the temperature, of which 1 is as good as any, is named whatever it is.
    on = {name: now.value(name) for name, one in CONTROLS.items() if now.value(name) != one.off}
    on |= {
        name: now.value(name) for name in ANSWER_OPTIONS if name not in _OF_A_SESSION and now.value(name) != usual(name)
    }
    try:
        overrides = SamplingOverrides(
            **{**on, "temperature": now.sampling.temperature}, max_tokens=now.max_tokens, others_off=True
        )
        keep_preset(SamplingPreset(overrides=overrides), target)
    except (ValueError, SamplingPresetError) as error:
        raise NotPossibleError(f"not saved: {error}") from error
    shipped = (paths.shipped_presets() / target.name).exists()
    return f"Saved as preset {target.stem}" + ("; it takes the place of the one that comes along" if shipped else "")


def keep_as_default(now: GenerationSettings, model: Path | None) -> str:
    """Write the values that are settings, and that the file does not say already, into it; a line about it.

    Raises:
        SettingsError: the file is broken or cannot be written; what was written before stays.
    """
    found = read_settings(environ={})
    for problem in found.file_problems:
        raise SettingsError(problem)
    file = at_start(found.held, model)
    wanted = [name for name in NAMES if name in _KEPT and now.value(name) != file.value(name)]
    alone = [name for name in wanted if name not in CONTROL_NAMES]
    rows = {name: to_plain(name, now.value(name)) for name in CONTROL_NAMES if now.value(name) != CONTROLS[name].off}
    table = ["sampling"] if len(alone) < len(wanted) else []
    # The file has to make sense at every step, and a greedy draw goes with no dynamic temperature.
    for name in (*table, *alone) if now.sampling.temperature == 0 else (*alone, *table):
        value = now.value(name) if name in NAMES else rows or None
        save_setting(name, SETTINGS[name].kind.to_toml(value) if value is not None and name in NAMES else value)
    if not wanted:
        return "settings.toml says all of this already"
    written = ", ".join(f"{name} {now.shown(name)}" for name in wanted)
    seed = "; the seed belongs to this session only" if now.seed is not None else ""
    settings = {SETTINGS["sampling" if name in CONTROL_NAMES else name].variable: None for name in wanted}
    beaten = [variable for variable in settings if os.environ.get(variable)]
    over = f"; the environment ({', '.join(beaten)}) beats the file" if beaten else ""
    left = [name for name in ANSWER_OPTIONS if name not in _KEPT and now.value(name) != usual(name)]
    rest = f"; a preset can keep {', '.join(left)}" if left else ""
    return f"Written into settings.toml: {written}{seed}{rest}{over}"

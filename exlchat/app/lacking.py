"""What the model that is there cannot do, by the names that the app has for it; why is said by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.generation_settings import NAMES, usual_value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from exlchat.app.generation_settings import GenerationSettings

_ASKED_BY = {
    "ban": "banned",
    "begin": "begun",
    "logprobs": "alternatives",
    "min_tokens": "min_new_tokens",
    "negative": "guidance_ids",
    "template": "format",
    "think": "thinking",
}
"""Name of a value -> what it asks a model for, by the keys of `ModelInfo.lacks`, where the two are not the same."""


def why_not(lacks: Mapping[str, str], name: str) -> str:
    """Why a model does not know one of `NAMES` or settings, and what would mend it; empty where it does."""
    return lacks.get(_ASKED_BY.get(name, name), "")


def setting_refused(lacks: Mapping[str, str], key: str, value: Any) -> str:
    """Why a model does not know what a setting is to be; empty where it does, and of what only switches off."""
    rows = dict(value) if key == "sampling" else {key: value}
    return next((why for name, one in rows.items() if one != usual_value(name) and (why := why_not(lacks, name))), "")


def refused(lacks: Mapping[str, str], wanted: GenerationSettings, now: GenerationSettings) -> str:
    """Why answers cannot be drawn as is `wanted`, of what that changes and does not only switch off; empty if so."""
    if not lacks:
        return ""
    for name in NAMES:
        value = wanted.value(name)
        if value not in (now.value(name), usual_value(name)) and (reason := why_not(lacks, name)):
            return reason
    constraint = wanted.speech.constraint
    return "" if constraint in (None, now.speech.constraint) else lacks.get(constraint.kind, "")

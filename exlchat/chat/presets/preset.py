"""A sampling preset as plain frozen values: a way of answering that can be called by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.untrusted.text import one_line


class SamplingPresetError(Exception):
    """A preset that cannot be used: one line that names the file, what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class SamplingPreset:
    """One preset file. There is no seed in it: that belongs to one answer, not to a way of answering.

    Args:
        description: one line that says when to take it.
        overrides: the values; those it does not have stay as they are.
        foreign: values of other programs that answers are not drawn by here, by program; never read, always kept.
            Values that TOML can hold.
    """

    description: str = ""
    overrides: SamplingOverrides = field(default_factory=SamplingOverrides)
    foreign: Mapping[str, Any] = field(default_factory=dict)

    @property
    def not_applied(self) -> str:
        """The names of what is kept in `foreign`, in one line; empty where there is nothing."""
        named = [(program, kept if isinstance(kept, Mapping) else {"": ""}) for program, kept in self.foreign.items()]
        return one_line(", ".join(f"{program} {key}".strip() for program, kept in named for key in kept), 200)

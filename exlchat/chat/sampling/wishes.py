"""What somebody wants of an answer, value by value: typed, of a preset, or of a persona."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from exlchat.engine.sampling_settings import SamplingSettings

_LARGEST = 10**9
"""More means nothing, and very much more does not fit where it goes."""


@dataclass(frozen=True, slots=True)
class SamplingWishes:
    """`None` leaves a value to whatever holds without it; the others are those of `SamplingSettings`.

    Args:
        temperature, top_k, top_p, min_p: how tokens are drawn.
        max_tokens: the longest answer, in tokens.

    Raises:
        ValueError: a value out of range, in one line.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if isinstance(value, int) and abs(value) > _LARGEST:
                # Not said: it may have thousands of digits.
                raise ValueError(f"{name} is too large; it must be at most {_LARGEST:,}")
            if not abs(value) <= _LARGEST:
                raise ValueError(f"{name} is {value}; it must be a number within reason")
        self.apply(SamplingSettings())
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")

    def given(self) -> dict[str, Any]:
        """The values that are wished for, by name."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def apply(self, base: SamplingSettings) -> SamplingSettings:
        """`base` with the wished values in place; `max_tokens` is no part of it."""
        return replace(base, **{name: value for name, value in self.given().items() if name != "max_tokens"})

    def over(self, other: SamplingWishes) -> SamplingWishes:
        """These wishes, and those of `other` where there are none."""
        return replace(other, **self.given())

    def describe(self) -> str:
        """The wished values in one line; empty when there are none."""
        given = self.given().items()
        return " · ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in given
        )

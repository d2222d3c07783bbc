"""The library as people see it: one entry a model, with what its headers say and when it was used last."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.runtime.model_loading import card_wishes
from exlchat.config.layers import Layer
from exlchat.llm.info import ModelCard, ModelError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.library.memory import ModelMemory
    from exlchat.app.library.places import FoundFolder
    from exlchat.app.options import AppOptions
    from exlchat.config.files import Reading

_NAME_LENGTH = 80
_CHOICES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. `name` is safe to show; `used` is in seconds since the epoch, `None` for never."""

    name: str
    card: ModelCard
    used: float | None = None

    @property
    def path(self) -> Path:
        return Path(self.card.path)

    @property
    def problem(self) -> str | None:
        """Why it cannot be loaded, or does not fit, in one line."""
        if self.card.problem is not None:
            return one_line(self.card.problem, 400)
        return one_line(self.card.fit.problem, 400) if self.card.fit and self.card.fit.problem else None


def entries(
    found: Sequence[FoundFolder], memory: ModelMemory, options: AppOptions, reading: Reading
) -> Iterator[Entry]:
    """Opens each folder's headers; imports torch, so call it away from the UI thread.

    Raises:
        ModelError: the device that was asked for is not there.
    """
    from exlchat.engine.model_card import describe, look_around

    usual = options.over(reading, Layer("remembered"))
    # It holds for the model that it was typed with, or of a list for all.
    together = options.tensor_parallel if options.model_path is None else 1
    cards = replace(card_wishes(options, usual), tensor_parallel=together)
    here = look_around(options.device, cards=cards, extension=usual.value("extension"))
    used = memory.last_used()
    for one in found:
        if one.problem is not None:
            card = ModelCard(str(one.path), 0, problem=one.problem)
        else:
            held = options.over(reading, memory.settings_of(one.path).layer)
            kind = held.value("kv_cache")
            if kind == "auto":
                kind = "fp16" if here.device.type == "cuda" else "fp32"
            card = describe(
                one.path, here, context=held.value("context"), kv_cache=kind, tokens=held.value("cache_tokens")
            )
        yield Entry(one_line(one.name, _NAME_LENGTH), card, used.get(os.path.realpath(one.path)))


def in_order(listed: Sequence[Entry]) -> list[Entry]:
    """What was used last comes first, then by name; what cannot be loaded comes last."""
    return sorted(listed, key=lambda entry: (entry.card.problem is not None, -(entry.used or 0), entry.name.casefold()))


def by_name(name: str, found: Sequence[FoundFolder]) -> FoundFolder | None:
    """The one model that `name` means: by its whole name, by its last part, or by a part that only one name has.

    Raises:
        ModelError: several are meant.
    """
    wanted = name.casefold()
    tests: tuple[Callable[[str], bool], ...] = (
        lambda one: one == wanted,
        lambda one: one.rpartition("/")[2] == wanted,
        lambda one: wanted in one,
    )
    for test in tests:
        meant = [one for one in found if test(one.name.casefold())]
        if len(meant) == 1:
            return meant[0]
        if meant:
            some = ", ".join(one_line(one.name, _NAME_LENGTH) for one in meant[:_CHOICES_SHOWN])
            more = ", ..." if len(meant) > _CHOICES_SHOWN else ""
            raise ModelError(
                f"{one_line(name, _NAME_LENGTH)} could be {some}{more}; give more of the name, or its folder"
            )
    return None


def size_text(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:.1f} MiB"


def used_text(used: float | None, now: datetime.datetime) -> str:
    if used is None:
        return "never used"
    try:
        days = (now.date() - datetime.datetime.fromtimestamp(used).date()).days
    except (OverflowError, OSError, ValueError):
        return "never used"
    return {0: "used today", 1: "used yesterday"}.get(days, f"used {days} days ago") if days >= 0 else "used today"


def summary(entry: Entry) -> str:
    """Format, size and length in one line; empty for what cannot be loaded."""
    card = entry.card
    if card.problem is not None:
        return ""
    parts = [
        card.architecture.removesuffix("ForCausalLM"),
        card.format,
        f"{card.bits_per_weight:.1f} bits a weight",
        size_text(card.bytes),
        f"context {card.context:,}",
    ]
    return one_line(" · ".join(parts))


def fit_text(entry: Entry) -> str:
    card = entry.card
    if card.fit is None or card.fit.problem is not None:
        return entry.problem or ""
    layers = "a part of every layer on each" if card.fit.together else f"{' + '.join(map(str, card.fit.layers))} layers"
    over = f" over {len(card.fit.layers)} cards ({layers})"
    fits = f"fits{over if len(card.fit.layers) > 1 else ''}"
    if card.fit.host_layers:
        fits += f", slowly: {card.fit.host_layers} of {sum(card.fit.layers)} layers in the machine's memory"
    shortened = card.fit.context < card.context
    return f"{fits}, with a context of {card.fit.context:,}" if shortened else fits

"""What the sampling panel says, and the steps in which its values go up and down. No terminal library here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.context import CONTEXT_POLICIES
from exlchat.ui.generation_settings import EXPLAINED, LARGEST_SEED, NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from exlchat.chat.sampling.preset import SamplingPreset
    from exlchat.ui.chat_front import ChatFront
    from exlchat.ui.generation_settings import GenerationSettings

_STEPS: dict[str, Sequence[float]] = {
    "temperature": (*(tenths / 10 for tenths in range(21)), 2.5, 3, 4, 5),
    "top_k": (0, 1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 500, 1000),
    "top_p": tuple(twentieths / 20 for twentieths in range(1, 21)),
    "min_p": (*(hundredths / 100 for hundredths in range(11)), 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1),
    "max_tokens": tuple(2**power for power in range(4, 15)),
}
_WITHOUT_LIMIT = float("inf")


def start_of(front: ChatFront) -> GenerationSettings:
    """How answers of the present model would be drawn had nobody changed that in this run."""
    return front.services.shelf.generation(paths.bundled_model() if front.model.is_guide else None)


def stepped(now: GenerationSettings, name: str, by: int) -> str | None:
    """The value one step above (`by` 1) or below (-1), as typed after /set; `None` where there is no other."""
    if name == "context_policy":
        place = list(CONTEXT_POLICIES).index(now.context_policy) + by
        return list(CONTEXT_POLICIES)[place] if 0 <= place < len(CONTEXT_POLICIES) else None
    if name == "seed":
        return _next_seed(now.seed, by)
    value = now.value(name)
    at = _WITHOUT_LIMIT if value is None else float(value)
    steps = _STEPS[name] if name != "max_tokens" else (*_STEPS[name], _WITHOUT_LIMIT)
    other = [step for step in steps if (step > at if by > 0 else step < at)]
    if not other:
        return None
    found = min(other) if by > 0 else max(other)
    return "none" if found == _WITHOUT_LIMIT else f"{found:g}"


def next_choice(now: GenerationSettings) -> str:
    """The word after the present one, and the first after the last."""
    return stepped(now, "context_policy", 1) or CONTEXT_POLICIES[0]


def is_chosen(name: str) -> bool:
    """Whether a value is one of a few words, not a number to be typed."""
    return name == "context_policy"


def typed_text(now: GenerationSettings, name: str) -> str:
    """A value as typed after /set."""
    value = now.value(name)
    if isinstance(value, float) and value == float(f"{value:g}"):
        return f"{value:g}"
    return "none" if value is None else str(value)


def value_lines(now: GenerationSettings, start: GenerationSettings, name: str) -> Iterator[str]:
    """What one value does, where it comes from, and what it was at the start."""
    yield EXPLAINED[name]
    before = "" if now.value(name) == start.value(name) else f" At the start: {start.shown(name)}."
    idle = " It changes nothing while the most likely token is always taken." if _is_idle(now, name) else ""
    yield f"Now: {now.shown(name)} ({now.source(name)}).{before}{idle}"


def preset_lines(preset: SamplingPreset, now: GenerationSettings, source: str) -> Iterator[str]:
    """What a preset is for, what taking it would change, and what of it would not be applied."""
    if preset.description:
        yield preset.description
    wished = preset.wishes.describe()
    changes = now.with_wishes(preset.wishes, source).changes_from(now)
    yield f"{wished or 'It wishes for nothing'}. " + (f"Changes {', '.join(changes)}." if changes else "It holds now.")
    if preset.not_applied:
        yield f"Not applied: {preset.not_applied}"


def panel_lines(front: ChatFront) -> Iterator[str]:
    """All values in lines, for where there is no panel."""
    now, start = front.session.generation, start_of(front)
    for name in NAMES:
        explained, held = value_lines(now, start, name)
        yield f"{name}: {held.removeprefix('Now: ')} {explained}"
    yield "/set NAME VALUE changes one, /preset NAME takes a preset; both hold from the next answer on"


def _is_idle(now: GenerationSettings, name: str) -> bool:
    """Whether another value decides every draw."""
    if now.sampling.temperature == 0:
        return name in ("top_k", "top_p", "min_p", "seed")
    return now.sampling.greedy and name in ("temperature", "top_p", "min_p", "seed")


def _next_seed(seed: int | None, by: int) -> str | None:
    if seed is None:
        return "0" if by > 0 else None
    if seed + by > LARGEST_SEED:
        return None
    return "none" if seed + by < 0 else str(seed + by)

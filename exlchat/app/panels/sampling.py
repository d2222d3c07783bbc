"""What the sampling panel says, and the steps in which its values go up and down. No terminal library here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.own_settings import SETTLED
from exlchat.app.generation_settings import EXPLAINED, NAMES, usual_value
from exlchat.app.lacking import why_not
from exlchat.app.panels.sampling_idle import idle_reason, order_line
from exlchat.chat import answer_option_values
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.presets import control_values
from exlchat.chat.prompt.context_policy import CONTEXT_POLICIES
from exlchat.llm.controls import CONTROLS
from exlchat.llm.limits import LARGEST_SEED
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from exlchat.app.chat.own_settings import Spoken
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.view import View
    from exlchat.chat.presets.preset import SamplingPreset

_SHARES = tuple(twentieths / 20 for twentieths in range(21))
_TENTHS = (*(tenths / 10 for tenths in range(21)), 2.5, 3, 4, 5)
_SMALL = (0, *(figure / 10**power for power in (5, 4, 3, 2) for figure in (1, 2, 3, 4, 6, 8)), 0.1)
_COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 40, 60, 80, 100, 150, 200, 500, 1000)
_FAR = (0, *(2**power for power in range(6, 18)))
_STEPS: dict[str, Sequence[float]] = {
    "top_k": (0, 1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 500, 1000),
    "min_p": (*(hundredths / 100 for hundredths in range(11)), 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1),
    "epsilon_cutoff": _SMALL,
    "eta_cutoff": _SMALL,
    "mirostat_tau": tuple(halves / 2 for halves in range(21)),
    "penalty_range": _FAR,
    "penalty_decay": _FAR,
    "dry_range": _FAR,
    "repetition_penalty": tuple(twentieths / 20 for twentieths in range(16, 41)),
    "dry_base": tuple(quarters / 4 for quarters in range(4, 17)),
    "no_repeat_ngram": (0, *_COUNTS[2:]),
    "max_tokens": tuple(2**power for power in range(4, 15)),
}
"""Of those that the range does not say enough about."""
_WITHOUT_LIMIT = float("inf")
_LISTS = ("texts", "tokens", "biases", "order")


def groups(now: GenerationSettings) -> Iterator[tuple[str, list[str]]]:
    """Heading and names of each group of values: first, without a heading, the main ones and what is not as usual."""
    shown = now.shown_names()
    yield "", shown
    for group in dict.fromkeys(control.group for control in CONTROLS.values()):
        names = [name for name in NAMES if name not in shown and name in CONTROLS and CONTROLS[name].group == group]
        if names:
            yield group, names
    names = [name for name in ANSWER_OPTIONS if name not in shown]
    if names:
        yield "What is said", names


def stepped(now: GenerationSettings, name: str, by: int) -> str | None:
    """The value one step above (`by` 1) or below (-1), as typed after /set; `None` where there is no other.

    From off, a control goes to what is usual for it. Lists have no steps.
    """
    if words := _words(name):
        place = words.index(typed_text(now, name)) + by
        return words[place] if 0 <= place < len(words) else None
    if name == "seed":
        return _next_seed(now.seed, by)
    if not has_steps(name):
        return None
    value = now.value(name)
    at = _WITHOUT_LIMIT if value is None else float(value)
    usual = _usual_beyond_off(name, at, by)
    if usual is not None:
        return f"{usual:g}"
    other = [step for step in _ladder(name) if (step > at if by > 0 else step < at)]
    if not other:
        return None
    found = min(other) if by > 0 else max(other)
    return "none" if found == _WITHOUT_LIMIT else f"{found:g}"


def _usual_beyond_off(name: str, at: float, by: int) -> float | None:
    """What a control that is off goes to first, in this direction."""
    control = CONTROLS.get(name)
    if control is None or control.usual is None or name == "temperature" or at != control.off:
        return None
    usual = float(control.usual)
    return usual if (usual - at) * by > 0 else None


def _ladder(name: str) -> Sequence[float]:
    if name in ("max_tokens", "thinking_budget"):
        return (*_STEPS["max_tokens"], _WITHOUT_LIMIT)
    if name in ANSWER_OPTIONS:
        return _COUNTS if name == "logprobs" else _FAR
    control = CONTROLS[name]
    steps = _STEPS.get(name)
    if steps is None:
        steps = _COUNTS if control.kind == "whole" else _SHARES if control.high <= 1 else _TENTHS
    if control.low < 0:
        steps = (*(-step for step in reversed(steps) if step), *steps)
    return [
        step
        for step in steps
        if (step > control.low if control.above else step >= control.low) and step <= control.high
    ]


def steps_of(now: GenerationSettings, name: str) -> list[str]:
    """The values that it can be stepped to, as typed after /set, from the least on; none of a list."""
    if words := _words(name):
        return words
    if name == "seed" or not has_steps(name):
        return [] if now.value(name) == usual_value(name) else ["off" if name in CONTROLS else "none"]
    return ["none" if step == _WITHOUT_LIMIT else f"{step:g}" for step in _ladder(name)]


def next_choice(now: GenerationSettings, name: str) -> str:
    """The word after the present one, and the first after the last."""
    return stepped(now, name, 1) or _words(name)[0]


def is_chosen(name: str) -> bool:
    return bool(_words(name))


def _words(name: str) -> list[str]:
    if name == "context_policy":
        return list(CONTEXT_POLICIES)
    if name not in ANSWER_OPTIONS:
        return []
    kinds = {"switch": ("on", "off"), "maybe": ("none", "on", "off"), "choice": ANSWER_OPTIONS[name].choices}
    return list(kinds.get(ANSWER_OPTIONS[name].kind, ()))


def has_steps(name: str) -> bool:
    if name in ANSWER_OPTIONS:
        return ANSWER_OPTIONS[name].kind in ("whole", "limit")
    return name not in CONTROLS or CONTROLS[name].kind not in _LISTS


def typed_text(now: GenerationSettings, name: str) -> str:
    """A value as typed after /set."""
    value = now.value(name)
    if name in CONTROLS:
        return control_values.to_text(name, value)
    if name in ANSWER_OPTIONS:
        return answer_option_values.to_text(name, value)
    return "none" if value is None else str(value)


def value_lines(
    now: GenerationSettings, start: GenerationSettings, name: str, lacks: Mapping[str, str]
) -> Iterator[str]:
    yield EXPLAINED[name]
    before = "" if now.value(name) == start.value(name) else f" At the start: {start.shown(name)}."
    reason = idle_reason(now.sampling, name)
    idle = f" It changes nothing while {reason}." if reason else ""
    lacking = f" Not now: {why}." if (why := why_not(lacks, name)) else ""
    yield f"Now: {now.shown(name)} ({now.source(name)}).{before}{idle}{lacking}"
    if name == "order":
        yield f"Typed are all steps, or those that come last, as in min_p, temperature. Now {order_line(now.sampling)}"


def preset_lines(preset: SamplingPreset, now: GenerationSettings, source: str) -> Iterator[str]:
    if preset.description:
        yield preset.description
    wished = preset.overrides.describe() or "It wishes for nothing"
    try:
        changes = now.with_overrides(preset.overrides, source).changes_from(now)
    except ValueError as error:
        yield f"{wished}. It cannot be taken now: {error}"
    else:
        yield f"{wished}. " + (f"Changes {', '.join(changes)}." if changes else "It holds now.")
    if preset.not_applied:
        yield f"Not applied: {preset.not_applied}"


def spoken_rows(spoken: Spoken) -> Iterator[tuple[str, str, str]]:
    """What else than values belongs to how a conversation is spoken to, where it is not as usual: name, value, source.

    The model is a hint: the one that the persona is meant for.
    """
    persona = spoken.persona
    if persona is not None:
        yield "persona", one_line(persona.name, 40), "conversation"
        if persona.model is not None:
            yield "meant for", one_line(persona.model, 60), persona.source
    if spoken.group is not None:
        yield "group", one_line(f"{spoken.who} · {SETTLED[spoken.speaks]}", 80), "conversation"
    if (source := spoken.held.source("template")) != "default":
        layer = spoken.held.origin("template")
        yield "template", one_line(spoken.template or "model", 60), layer.name or source
    if (note := spoken.own.note) is not None:
        yield "author's note", f"{note.depth} back: {one_line(note.text, 40)}", "conversation"


def panel_lines(view: View) -> Iterator[str]:
    """All values in lines, for where there is no panel."""
    now, start, lacks = view.session.generation, view.session.as_usual, view.session.lacks
    for group, names in groups(now):
        if group:
            yield f"{group}, as usual:"
        for name in names:
            explained, held, *_ = value_lines(now, start, name, lacks)
            reason = why_not(lacks, name)
            told = f"Not now: {reason}." if reason else explained
            yield f"  {name} {now.shown(name)}: {told}" if group else f"{name}: {held[5:]} {explained}"
    yield order_line(now.sampling)
    for title, value, source in spoken_rows(view.session.spoken):
        yield f"{title}: {value} ({source})"
    yield "/set NAME VALUE changes one, /preset NAME takes a preset; both hold from the next answer on"


def _next_seed(seed: int | None, by: int) -> str | None:
    if seed is None:
        return "0" if by > 0 else None
    if seed + by > LARGEST_SEED:
        return None
    return "none" if seed + by < 0 else str(seed + by)

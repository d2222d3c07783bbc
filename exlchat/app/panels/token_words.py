"""Tokens and probabilities in words: what can be seen of any token, percents, how sure the model was. No terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from exlchat.chat.answer_chances import UNSURE, probability
from exlchat.untrusted.text import visible

if TYPE_CHECKING:
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.llm.events import TokenChance

Sureness = Literal["sure", "likely", "unsure", "unlikely"]

_SEEN: Final = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_SURE: Final = 0.9
_UNLIKELY: Final = 0.1
LEGEND: Final[tuple[tuple[Sureness, str], ...]] = (
    ("sure", "90 % and more"),
    ("likely", "50 %"),
    ("unsure", "10 %"),
    ("unlikely", "less"),
)
"""From the likeliest: the least probability of each."""
OWN: Final = "The model's own probabilities: at temperature 1, before top-k, top-p and min-p."
_MOST_LINES: Final = 36
_TOKENS_BEFORE: Final = 4


def sureness(chance: float) -> Sureness:
    if chance >= _SURE:
        return "sure"
    if chance >= UNSURE:
        return "likely"
    return "unsure" if chance >= _UNLIKELY else "unlikely"


def percent(chance: float) -> str:
    """A probability with as many digits as say something: "97.3 %", "0.05 %"."""
    if chance >= 0.01:
        return f"{chance:.1%}".replace("%", " %")
    return f"{chance:.2%}".replace("%", " %") if chance >= 0.0001 else "< 0.01 %"


def token_name(text: str) -> str:
    """A token's text with everything in it that cannot be seen spelled out; never empty."""
    return "".join(_SEEN.get(mark) or visible(mark) or f"U+{ord(mark):04X}" for mark in text) or "(no text)"


def named(chances: AnswerChances, chance: TokenChance) -> str:
    name = token_name(chances.texts.get(chance.token_id, ""))
    return f"{name} (ends the answer)" if chance.token_id in chances.ends else name


def place_line(chances: AnswerChances, at: int) -> str:
    taken = chances.places[at].taken
    if taken is None:
        kept = bool(chances.places[at].top)
        return f"behind the last token · what may follow{':' if kept else ' was not kept'}"
    return f"{_taken_line(chances, taken)} · {at + 1:,} of {len(chances.ids):,}"


def chance_lines(chances: AnswerChances) -> list[str]:
    """The tokens that the model was not sure of, a line each, with what was likeliest there; the first ones of many."""
    lines = [f"{line[0].upper()}{line[1:]}." for line in chances.notices]
    unsure = chances.unsure()
    many = (
        f"{len(unsure):,} of {len(chances.ids):,} tokens had less than 50 %"
        if unsure
        else "no token had less than 50 %"
    )
    lines.append(f"{OWN} In this answer {many}.")
    for at in unsure[:_MOST_LINES]:
        taken = chances.places[at].taken
        assert taken is not None
        before = token_name("".join(chances.pieces[max(at - _TOKENS_BEFORE, 0) : at])) if at else ""
        others = [one for one in chances.places[at].top if one.token_id != taken.token_id][:3]
        rivals = " · ".join(f"{one.rank}: {named(chances, one)} {percent(probability(one))}" for one in others)
        lines.append(f"{at + 1:>5}  {before}>{_taken_line(chances, taken)} · else {rivals}")
    if len(unsure) > _MOST_LINES:
        lines.append(f"and {len(unsure) - _MOST_LINES:,} more; exlchat without --line shows every token")
    return lines


def _taken_line(chances: AnswerChances, taken: TokenChance) -> str:
    return f"{token_name(chances.texts[taken.token_id])} · {percent(probability(taken))} · rank {taken.rank:,}"

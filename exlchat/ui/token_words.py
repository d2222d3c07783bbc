"""Tokens and probabilities in words: what can be seen of any token, percents, how sure the model was. No terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from exlchat.chat.answer_chances import UNSURE, probability
from exlchat.chat.plain_text import visible

if TYPE_CHECKING:
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.engine.events import TokenChance

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


def sureness(chance: float) -> Sureness:
    """Where a probability stands on the scale of colours."""
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
    """What to call one token; one that ends an answer says so."""
    name = token_name(chances.texts.get(chance.token_id, ""))
    return f"{name} (ends the answer)" if chance.token_id in chances.ends else name


def place_line(chances: AnswerChances, at: int) -> str:
    """About the token at a place: which it is, how likely it was, and how many were likelier."""
    taken = chances.places[at].taken
    if taken is None:
        return "behind the last token · what may follow:"
    return (
        f"{at + 1:,} of {len(chances.ids):,} · {token_name(chances.texts[taken.token_id])} · "
        f"{percent(probability(taken))} · rank {taken.rank:,}"
    )

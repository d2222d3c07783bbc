"""How likely tokens were, in the two forms that clients know, and what tokens are called there."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from exlchat.chat.prompt.layout import single_texts
from exlchat.llm.events import PlaceChances, TokenChance
from exlchat.llm.port import SpellsTokens, TextModel

Chances = Sequence[tuple[int, PlaceChances | None]]
"""Tokens in order; without chances is one that nothing stands before."""
Spell = Callable[[Iterable[int]], dict[int, bytes]]

_LEAST = -9999.0
"""What is impossible has no logarithm that JSON could hold."""


def speller(model: TextModel) -> Spell:
    """What each id adds to a text."""
    if isinstance(model, SpellsTokens):
        spell = model.spell

        def exact(ids: Iterable[int]) -> dict[int, bytes]:
            known = list(dict.fromkeys(ids))
            return dict(zip(known, spell(known), strict=True))

        return exact
    return lambda ids: {token: text.encode() for token, text in single_texts(model, dict.fromkeys(ids)).items()}


class TokenNames:
    """What tokens are called.

    Args:
        spell: of whose tokens.
        top: so many of the likeliest are told at each place.
        by_id: name them `token_id:N`.
    """

    def __init__(self, spell: Spell, top: int, *, by_id: bool = False) -> None:
        self._spell, self._top, self._by_id = spell, top, by_id

    def chat(self, chances: Chances) -> dict[str, Any]:
        """`logprobs` of a chat completion. `id` is no field of OpenAI's, but llama.cpp's."""
        spelled = self._spelled(chances)
        entries = []
        for token, place in chances:
            top = self._told(place)
            entry = self._entry(token, None if place is None else place.taken, spelled)
            entries.append({**entry, "top_logprobs": [self._entry(one.token_id, one, spelled) for one in top]})
        return {"content": entries, "refusal": None}

    def text(self, chances: Chances, offset: Offset) -> dict[str, Any]:
        """`logprobs` of a text completion."""
        spelled = self._spelled(chances)
        return {
            "tokens": [self._name(token, spelled[token]) for token, _ in chances],
            "token_logprobs": [_value(None if place is None else place.taken) for _, place in chances],
            "top_logprobs": [self._legacy_top(place, spelled) for _, place in chances],
            "text_offset": [offset.before(spelled[token]) for token, _ in chances],
        }

    def _told(self, place: PlaceChances | None) -> Sequence[TokenChance]:
        return () if place is None else place.top[: self._top]

    def _spelled(self, chances: Chances) -> dict[int, bytes]:
        named = [token for token, _ in chances]
        return self._spell([*named, *(one.token_id for _, place in chances for one in self._told(place))])

    def _legacy_top(self, place: PlaceChances | None, spelled: dict[int, bytes]) -> dict[str, float | None] | None:
        """By name; the token that stands there is among them, as OpenAI has it."""
        if place is None:
            return None
        found: dict[str, float | None] = {}
        for one in (*self._told(place), *([place.taken] if place.taken is not None else [])):
            found.setdefault(self._name(one.token_id, spelled[one.token_id]), _value(one))
        return found

    def _entry(self, token: int, chance: TokenChance | None, spelled: dict[int, bytes]) -> dict[str, Any]:
        data = spelled[token]
        return {"token": self._name(token, data), "bytes": list(data), "logprob": _value(chance), "id": token}

    def _name(self, token: int, data: bytes) -> str:
        if self._by_id:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            # Part of a character, as OpenAI writes it.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Offset:
    """Where tokens begin in a text, in characters, as they come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def before(self, data: bytes) -> int:
        """Where a token begins; a character that it ends belongs to it."""
        at = self._at
        self._at += len(self._decoder.decode(data))
        return at


def _value(chance: TokenChance | None) -> float | None:
    if chance is None:
        return None
    return chance.log_probability if math.isfinite(chance.log_probability) else _LEAST

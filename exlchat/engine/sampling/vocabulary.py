"""What the sampler has to know of a model's tokens: their texts, and which of them are special. No torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from exlchat.llm.controls import TokenName

_SHOWN = 60


class TokenTexts:
    """The texts of a model's tokens, read once, when something needs them. Safe to share between answers.

    Args:
        size: logits of the model, which are the rows of its embedding.
        text_of: the text of an id below `size`; "" of one without a text.
        encode: a text to ids, with nothing put before or behind it.
        special_ids: of control tokens.
    """

    def __init__(
        self,
        size: int,
        text_of: Callable[[int], str],
        encode: Callable[[str], list[int]],
        special_ids: Collection[int],
    ) -> None:
        self.size = size
        self._text_of = text_of
        self._encode = encode
        self._special_ids = special_ids
        self._holding: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def breakers(self, breakers: tuple[str, ...]) -> NDArray[np.bool_]:
        """Whether a passage of DRY ends at a token: bool `[size]`, read-only.

        Those are the tokens whose text holds one of `breakers`, and the special ones.
        """
        found = self._holding.get(breakers)
        if found is None:
            found = self._holding[breakers] = self._special_or_holding(breakers)
        return found

    def protected(self) -> NDArray[np.bool_]:
        """Whether XTC leaves a token alone: bool `[size]`, read-only. Special ones, and those that hold a newline."""
        return self.breakers(("\n",))

    def token(self, name: TokenName) -> int:
        """The id of a token that is named by its id, or by a text.

        Raises:
            ValueError: there is no such id, or the text is not exactly one token; in one line.
        """
        if isinstance(name, int):
            if not 0 <= name < self.size:
                raise ValueError(f"there is no token {name}; the ids of this model are 0 to {self.size - 1:,}")
            return name
        ids = self._encode(name)
        if len(ids) != 1:
            shown = repr(name) if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]!r}…"
            raise ValueError(f"{shown} is {len(ids) or 'no'} tokens of this model; it must be one (or name its id)")
        return self.token(ids[0])

    def _special_or_holding(self, parts: tuple[str, ...]) -> NDArray[np.bool_]:
        found = np.zeros(self.size, np.bool_)
        for part in parts:
            found |= np.fromiter((part in text for text in self._texts), np.bool_, self.size)
        found[[token for token in self._special_ids if token < self.size]] = True
        found.flags.writeable = False
        return found

    @cached_property
    def _texts(self) -> list[str]:
        return [self._text_of(token) for token in range(self.size)]

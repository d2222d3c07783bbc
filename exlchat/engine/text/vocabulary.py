"""The tokens of a model by their texts, read when something first needs them."""

from __future__ import annotations

from functools import cached_property

from exlchat.engine.sampling import TokenTexts
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.sampling import SamplingSettings


class Vocabulary:
    """Safe to use from several threads: what two of them read at once is the same.

    Args:
        tokenizer: of the model.
        size: rows of its embedding.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size

    @cached_property
    def texts(self) -> list[str]:
        return self._tokenizer.texts(self.size)

    @cached_property
    def of_samplers(self) -> TokenTexts:
        special = [
            index for text in self._tokenizer.special_tokens if (index := self._tokenizer.id_of(text)) is not None
        ]
        return TokenTexts(self.size, lambda index: self.texts[index], self._tokenizer.encode, special)

    def for_settings(self, settings: SamplingSettings) -> TokenTexts | None:
        """`of_samplers` where these settings go by the texts of tokens."""
        named = settings.logit_bias or settings.banned_tokens
        return (
            self.of_samplers if named or settings.is_on("dry_multiplier") or settings.is_on("xtc_probability") else None
        )

"""A model's tokens as the grammar library wants them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exlchat.engine.text.token_bytes import Swallowed
from exlchat.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# The library wants a token that ends a text. Which ones do is a matter of the request, so it gets one that is none of
# the model's: 0xFF says that it is special, and the space that no grammar can name it.
_END = b"\xff<the end>"
# The library breaks down at tokens of some 2,000 bytes; the longest in use are runs of spaces, some 130.
_LONGEST = 1000


class GrammarVocabulary:
    """The tokens of one model, prepared once, when they are first asked for. Safe to use from several threads.

    Args:
        tokenizer: of the model.
        size: rows of the logits, which may be more than there are tokens.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size
        self._lock = Lock()
        self._prepared: _Prepared | None = None

    @property
    def library(self) -> LLTokenizer:
        """Of `size` tokens and the end.

        Preparing 128,000 tokens takes 1.1 to 1.8 s on one core and 4,096 take 30 ms, so it is for a thread beside the
        screen. Half of that are the library's slices, which it puts common tokens in; without them one mask in ten
        within a JSON string takes 7 ms instead of 0.3 ms.

        Raises:
            ModelError: the tokenizer is of a kind without bytes for its tokens.
        """
        return self._prepare().library

    @property
    def swallowed(self) -> Swallowed:
        """What of the first token of an answer is not shown."""
        return self._prepare().swallowed

    @property
    def spaced(self) -> NDArray[np.bool_]:
        """bool `[size]`: tokens that begin with a space."""
        return self._prepare().spaced

    @property
    def widely_spaced(self) -> NDArray[np.bool_]:
        """bool `[size]`: tokens that begin with two."""
        return self._prepare().widely_spaced

    def _prepare(self) -> _Prepared:
        with self._lock:
            if self._prepared is None:
                self._prepared = _Prepared(self._tokenizer, self.size)
            return self._prepared


class _Prepared:
    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        found = tokenizer.token_bytes(size)
        self.library = open_library(found.tokens)
        self.swallowed = found.swallowed
        self.spaced = np.array([token.startswith(b" ") for token in found.tokens], dtype=np.bool_)
        self.widely_spaced = np.array([token.startswith(b"  ") for token in found.tokens], dtype=np.bool_)


@functools.cache
def single_bytes() -> LLTokenizer:
    """A vocabulary of all bytes, for what has to be known of a grammar without a model."""
    return open_library([bytes([value]) for value in range(256)])


def open_library(tokens: Sequence[bytes]) -> LLTokenizer:
    """The library's vocabulary of some tokens and the end behind them; empty and overlong ones match nothing."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Words(tokens)), eos_token=len(tokens))


class _Words:
    """What the library asks of a tokenizer."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = [*(token if len(token) <= _LONGEST else b"" for token in tokens), _END]
        self.eos_token_id = len(tokens)
        self.bos_token_id = None
        self.special_token_ids = [len(tokens)]

    def __call__(self, _text: Any) -> list[int]:
        # Only for putting forced text into tokens, which is off: see `source`.
        return []

"""A tokenizer of any size without training: every byte is a token, and so are many four-letter words."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """The content of a `tokenizer.json` with exactly `vocab_size` tokens, at least 256.

    Text is encoded byte by byte, because there are no merges; the words come only from a model's random choices and
    are of the length that tokens have on average.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = map("".join, itertools.product(_LETTERS, repeat=4))
    tokens = itertools.islice(itertools.chain(alphabet, words), vocab_size)
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content

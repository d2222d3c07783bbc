"""By how much a tokenizer may make a text longer before it cuts it, or a token when it spells it, at the most.

Told from its parts, whatever the text: a part that waits for one rare word is found like any other.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

# Characters that one may become: of Unicode's normal forms the longest (U+FDFA in the compatible ones), lower case of
# I with a dot, GPT-2's characters for the bytes of one, spaces on both sides or in front of it.
_MOST = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 3,
    "BertNormalizer": 12,
    "ByteLevel": 4,
    "Metaspace": 2,
    "WordPiece": 2,
    "BPEDecoder": 2,
    "CTC": 2,
}


def encoding_growth(tokenizer: Tokenizer) -> float:
    """Characters that its model may be given for one character of a text."""
    return math.prod(map(_factor, [*_parts(tokenizer.normalizer), *_parts(tokenizer.pre_tokenizer)]))


def decoding_growth(tokenizer: Tokenizer) -> float:
    """Characters of a text for one character of a token."""
    # Bytes become characters here, and not the other way round.
    return math.prod(_factor(part) for part in _parts(tokenizer.decoder) if part["type"] != "ByteLevel")


def _parts(part: Any) -> Iterator[Mapping[str, Any]]:
    if part is not None:
        yield from _flat(json.loads(part.__getstate__()))


def _flat(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        yield state
        return
    for key in ("normalizers", "pretokenizers", "decoders"):
        for inner in state.get(key, ()):
            yield from _flat(inner)


def _factor(part: Mapping[str, Any]) -> float:
    match part:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new) / len(old))
        case {"type": "Replace", "content": str(new)}:
            # A pattern may match nothing, between any two characters.
            return 1.0 + len(new)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            # A trie behind its size, and behind it what it leads to, each behind a zero.
            rules = base64.b64decode(charsmap)
            texts = rules[4 + int.from_bytes(rules[:4], "little") :]
            return max(1.0, float(max(len(text.decode("utf-8", "replace")) for text in texts.split(b"\0"))))
        case {"type": "Metaspace", "prepend_scheme": "never"}:
            return 1.0
        case _:
            return _MOST.get(part["type"], 1.0)

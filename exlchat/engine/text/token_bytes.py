"""What each token of a vocabulary adds to a text, in bytes, as the tokenizer's decoder has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Tokenizer

from exlchat.llm.info import ModelError

Swallowed = Literal["nothing", "one space", "all spaces"]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_DIGITS = "0123456789ABCDEFabcdef"
_Step = Callable[[str], str | bytes]


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What each id is as text.

    Args:
        tokens: bytes by id. Special tokens, and ids that the tokenizer does not have, have none.
        swallowed: what of the first token of a text is not shown: SentencePiece puts a space before each text, and its
            decoder takes it away again.
    """

    tokens: tuple[bytes, ...]
    swallowed: Swallowed


def token_bytes(tokenizer: Tokenizer, size: int) -> TokenBytes:
    """The bytes of the ids below `size`.

    Raises:
        ModelError: the tokenizer decodes in a way in which a token has no bytes of its own, as WordPiece does.
    """
    state = _decoder_of(tokenizer)
    steps, swallowed = _read_decoder(state)
    special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    by_id = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    return TokenBytes(
        tuple(b"" if index in special else _through(by_id.get(index, ""), steps) for index in range(size)), swallowed
    )


def read_fallback(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of bytes that the tokenizer's decoder takes together; none where it does not fall back to bytes."""
    state = _decoder_of(tokenizer)
    if not any(part.get("type") == "ByteFallback" for part in _flat(state)):
        return frozenset()
    names = (f"<0x{high}{low}>" for high in _DIGITS for low in _DIGITS)
    return frozenset(index for name in names if (index := tokenizer.token_to_id(name)) is not None)


def _through(token: str, steps: list[_Step]) -> bytes:
    for step in steps:
        found = step(token)
        if isinstance(found, bytes):
            return found
        token = found
    return token.encode("utf-8", "surrogatepass")


def _read_decoder(state: dict[str, Any] | None) -> tuple[list[_Step], Swallowed]:
    steps: list[_Step] = []
    swallowed: Swallowed = "nothing"
    fused = False
    for part in _flat(state):
        match part:
            case {"type": "ByteLevel"}:
                steps.append(_byte_level)
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                steps.append(lambda token, old=old, new=new: token.replace(old, new))  # type: ignore[misc]
            case {"type": "ByteFallback"}:
                steps.append(_byte_fallback)
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0} if fused:
                swallowed = "one space" if start else swallowed
            case {"type": "Metaspace", "replacement": str(old)}:
                steps.append(lambda token, old=old: token.replace(old, " "))  # type: ignore[misc]
                swallowed = swallowed if part.get("prepend_scheme") == "never" else "all spaces"
            case _:
                raise ModelError(
                    f"the tokenizer decodes with {str(part.get('type'))[:40]}, where tokens have no bytes of their "
                    "own; answers of this model cannot be constrained"
                )
    return steps, swallowed


def _decoder_of(tokenizer: Tokenizer) -> dict[str, Any] | None:
    return None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())


def _flat(state: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if state is None:
        # The library then puts spaces between all tokens.
        yield {"type": "nothing"}
    elif state.get("type") == "Sequence":
        for part in state["decoders"]:
            yield from _flat(part)
    else:
        yield state


def _byte_fallback(token: str) -> str | bytes:
    found = _BYTE.fullmatch(token)
    return token if found is None else bytes([int(found[1], 16)])


def _byte_level(token: str) -> str | bytes:
    """GPT-2's alphabet. A token with another character is text as it stands, as the library has it."""
    try:
        return bytes(map(_OF_CHARACTER.__getitem__, token))
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def _alphabet() -> dict[str, int]:
    """GPT-2's: bytes that can be printed in Latin-1 stand for themselves, the others for the characters from 256 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


_OF_CHARACTER = _alphabet()

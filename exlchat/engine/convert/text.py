"""Text that statistics are made of, and text that results are measured on: never the same."""

from __future__ import annotations

import hashlib
import lzma
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.info import ModelError
from exlchat.untrusted import files
from exlchat.untrusted.files import UntrustedFileError

CALIBRATION, EVALUATION = "calibration", "evaluation"
LARGEST_TEXT = 64_000_000
"""Bytes of a text: some ten times what the most tokens need."""
_RUN, _STEP = 256, 64
"""Characters. The bundled texts share single lines of code, of half that length at most."""
_SHARED = (
    f"the calibration text holds {{count}} runs of {_RUN} characters of the text that results are measured on; leave "
    "those out"
)


def bundled_text(name: str) -> str:
    """`calibration` or `evaluation`: documentation, conversations and code, of this program's own licence."""
    packed = resources.files("exlchat.engine.convert").joinpath("texts", f"{name}.txt.xz").read_bytes()
    return lzma.decompress(packed).decode()


def read_text(file: Path) -> str:
    """A text of the user's.

    Raises:
        ModelError: it cannot be read, or is no text.
    """
    try:
        return files.read_text(file, largest=LARGEST_TEXT, kind="a text")
    except UntrustedFileError as error:
        raise ModelError(f"{file}: {error}") from None


def rows_of(text: str, tokenizer: Tokenizer, tokens: int, length: int) -> Tensor:
    """The first tokens of a text in rows, spread evenly over it: int64 `[rows, length]`.

    Each row begins as texts of the model do, with its token for that where it has one.

    Args:
        tokens: how many at most.
        length: of a row.

    Raises:
        ModelError: the text is too short for one row.
    """
    ids = tokenizer.encode(text, special=False)
    begin = tokenizer.encode(tokenizer.named_tokens.get("bos_token", ""), special=True)
    begin = begin if len(begin) == 1 else []
    each = length - len(begin)
    there = len(ids) // each
    if not there:
        raise ModelError(f"the text has {len(ids)} tokens, and one row takes {each}; give a longer one")
    wanted = min(max(tokens // length, 1), there)
    # Spread over the text, so that few rows of a mixed one have all of its kinds.
    starts = [number * there // wanted * each for number in range(wanted)]
    return torch.tensor([begin + ids[start : start + each] for start in starts])


def check_apart(calibration: str, evaluation: str) -> None:
    """Sees that a model is not measured on what it was made with, however the text is broken into lines.

    Raises:
        ModelError: the texts share runs of characters.
    """
    made, measured = (" ".join(text.split()) for text in (calibration, evaluation))
    known = {measured[first : first + _RUN] for first in range(0, len(measured) - _RUN + 1, _STEP)}
    count = sum(made[first : first + _RUN] in known for first in range(len(made) - _RUN + 1))
    if count:
        raise ModelError(_SHARED.format(count=count))


def digest(rows: Tensor) -> str:
    """A name for these tokens."""
    return hashlib.blake2b(rows.numpy().tobytes() + str(tuple(rows.shape)).encode(), digest_size=16).hexdigest()

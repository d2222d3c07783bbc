"""Token healing: a text that was cut within a word goes on as if it had not been.

The last token of the text is taken back and drawn anew among those that begin with its characters. So "http:" goes on
with the token "://", where the cut had left a colon that the model hardly ever sees alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.text.incremental_decoder import IncrementalDecoder


@dataclass(frozen=True, slots=True)
class Healing:
    """What is done to the end of a prompt.

    Args:
        text: characters of the token that is taken back: they are shown already.
        allowed: bool `[vocab]`, tokens that begin with them.
    """

    text: str
    allowed: Tensor


def healing_of(
    begun: Sequence[int],
    texts: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    stop_ids: frozenset[int],
) -> Healing | None:
    """How the last of these ids is healed; `None` where it cannot be: a special token, or half a character.

    Args:
        begun: the answer so far.
        texts: of each id of the vocabulary, within a text.
    """
    if not begun:
        return None
    last, text = begun[-1], texts[begun[-1]] if begun[-1] < len(texts) else ""
    if not text or "\ufffd" in text or last in stop_ids:
        return None
    decoder = IncrementalDecoder(decode, begun[:-1])
    shown = decoder.push(last)
    if not shown or "\ufffd" in shown:
        return None
    allowed = torch.zeros(len(texts), dtype=torch.bool)
    allowed[[index for index, one in enumerate(texts) if one.startswith(text)]] = True
    return Healing(shown, allowed)

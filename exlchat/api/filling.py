"""What stands between a text and the text behind it (`suffix`), by models that were made to fill in."""

from __future__ import annotations

from exlchat.api.errors import bad
from exlchat.llm.port import TextModel

_MARKS = (
    # Qwen Coder, CodeGemma
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite Code
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # DeepSeek Coder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)
"""Before the text, before what stands behind it, and before what is filled in; by the families' model cards."""


def filling_marks(model: TextModel) -> tuple[int, int, int]:
    """The ids of those that this model has. Raises `ApiError`: it was not made to fill in."""
    for marks in _MARKS:
        ids = [model.encode(mark) for mark in marks]
        # What is no token of the vocabulary is many.
        if all(len(one) == 1 for one in ids):
            return ids[0][0], ids[1][0], ids[2][0]
    raise bad("suffix", "suffix: this model has no tokens for filling in; leave it out, or load a model that has")


def filling_ids(model: TextModel, text: str, suffix: str) -> tuple[int, ...]:
    """Up to where it is filled in. Both are of a stranger's file, whose special tokens are text."""
    first, second, third = filling_marks(model)
    return (first, *model.encode(text, special=False), second, *model.encode(suffix, special=False), third)

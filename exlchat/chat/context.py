"""What fits into the model's context. Nothing is left out silently: what does not fit is said."""

from __future__ import annotations

ANSWER_RESERVE = 32
"""Tokens kept free for an answer: fewer would cut it in its first sentence."""


class ContextFull(Exception):  # noqa: N818 - a state of the conversation, not a fault
    """The prompt leaves no room for an answer; one line with the numbers and what to do."""

    def __init__(self, prompt_tokens: int, reserve: int, max_seq_len: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_seq_len = max_seq_len
        super().__init__(
            f"the prompt has {prompt_tokens:,} tokens and the answer needs room for {reserve:,}, but the context holds "
            f"{max_seq_len:,}; start a new conversation, shorten the message, or load the model with a larger --context"
        )


def require_room(prompt_tokens: int, max_seq_len: int, *, max_new_tokens: int | None = None) -> None:
    """See that an answer still fits behind a prompt.

    Raises:
        ContextFull: fewer tokens are left than the answer may need, at most `ANSWER_RESERVE`.
    """
    reserve = ANSWER_RESERVE if max_new_tokens is None else min(max_new_tokens, ANSWER_RESERVE)
    if prompt_tokens + reserve > max_seq_len:
        raise ContextFull(prompt_tokens, reserve, max_seq_len)

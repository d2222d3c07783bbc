"""What fits into the model's context. Nothing is left out silently: what does not fit is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exlchat.chat.conversation import Message
from exlchat.chat.engine_port import EnginePort
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.prompt_ids import prompt_ids, prompt_messages

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


@dataclass(frozen=True, slots=True)
class ContextUse:
    """`used` of `maximum` tokens."""

    used: int
    maximum: int


def require_room(prompt_tokens: int, max_seq_len: int, *, max_new_tokens: int | None = None) -> None:
    """See that an answer still fits behind a prompt.

    Raises:
        ContextFull: fewer tokens are left than the answer may need, at most `ANSWER_RESERVE`.
    """
    reserve = ANSWER_RESERVE if max_new_tokens is None else min(max_new_tokens, ANSWER_RESERVE)
    if prompt_tokens + reserve > max_seq_len:
        raise ContextFull(prompt_tokens, reserve, max_seq_len)


def context_use(engine: EnginePort, branch: Sequence[Message], form: PromptFormat) -> ContextUse:
    """How much of the context a branch takes, without the opening of the next answer.

    Raises:
        PromptError: the format cannot take this branch.
    """
    messages = prompt_messages(branch)
    used = len(prompt_ids(engine, messages, form, add_generation_prompt=False)) if messages else 0
    return ContextUse(used, engine.info.max_seq_len)

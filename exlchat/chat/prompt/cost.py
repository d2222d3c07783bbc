"""What a prompt will cost before it is asked: how many of its tokens the model would have to read anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from exlchat.chat.model import Message, settings_of
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt.inspection import cached_tokens, to_ask
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.speakers import GROUP
from exlchat.llm.port import Engine

_SOME_TEXTS = ("a", "1")


@dataclass(frozen=True, slots=True)
class PromptCost:
    prompt_tokens: int
    cached_tokens: int

    @property
    def new_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def prompt_cost(
    engine: Engine,
    branch: Sequence[Message],
    *,
    template: str | None = None,
    system: str | None = None,
    policy: ContextPolicy = "summarise",
    thinking: bool | None = None,
) -> PromptCost:
    """What reading a branch again would cost now, without what will be written next.

    Of a prompt that is cached as a whole one token is read: the engine must compute something to say what comes next.

    Args:
        engine: who would read it.
        branch: the messages in question: up to an edit, or all.
        template: prompt format by name or file; `None` takes the model's own.
        system: a system prompt in the place of the branch's own.
        thinking: whether the model is to think first; `None` leaves it to who speaks.
        policy: whether the model goes on seeing what the last answer saw, and its summary.

    Raises:
        PromptError: the format cannot take these messages.
    """
    if system is not None:
        group = next((one.persona for one in reversed(branch) if one.role == "system"), None)
        group = group if group is not None and GROUP in group else None
        told = Message("", None, "system", system, 0.0, persona=group, settings=settings_of(branch))
        branch = (*(one for one in branch if one.role != "system"), told)
    asked = to_ask(engine, branch, template=template, policy=policy, thinking=thinking)
    messages = asked.messages
    if not any(message.role == "user" for message in messages):
        return PromptCost(0, 0)
    ids = prompt_ids(engine, messages, asked.form, add_generation_prompt=messages[-1].role == "user")
    return PromptCost(len(ids), min(cached_tokens(engine, ids), max(len(ids) - 1, 0)))


def shared_beginning(engine: Engine, messages: Sequence[PromptMessage], form: PromptFormat) -> int:
    """How many of a prompt's first tokens any conversation with its system prompt begins with; 0 without one.

    Found out by asking two things that have nothing in common.
    """
    if not messages or messages[0].role != "system":
        return 0
    asked = [replace(messages[0], role="user", text=text) for text in _SOME_TEXTS]
    try:
        one, other = (prompt_ids(engine, [messages[0], question], form) for question in asked)
    except PromptError:
        return 0
    pairs = zip(one, other, strict=False)
    return next((index for index, (first, second) in enumerate(pairs) if first != second), 0)

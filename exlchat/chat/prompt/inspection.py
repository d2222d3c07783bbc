"""The prompt that would be asked now, laid open: exact tokens, whose they are, and how many the cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exlchat import paths
from exlchat.chat.model import Message
from exlchat.chat.prompt.answer_ids import with_own_ids
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.context_window import messages_now
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.chat.prompt.layout import PromptLayout, lay_out
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_names, with_thinking
from exlchat.chat.speaking import (
    KeepsNothing,
    heard,
    heard_at_end,
    note_told,
    speaker_names,
    speaker_thinks,
    with_lore_told,
)
from exlchat.llm.port import Engine, HasCache, TextModel


@dataclass(frozen=True, slots=True)
class ToAsk:
    form: PromptFormat
    messages: tuple[PromptMessage, ...]
    notice: str | None


@dataclass(frozen=True, slots=True)
class Inspected:
    """A prompt laid open; of its tokens the first `cached` would not be computed anew."""

    form: str
    layout: PromptLayout
    cached: int


def to_ask(
    engine: TextModel,
    branch: Sequence[Message],
    *,
    template: str | None,
    policy: ContextPolicy,
    thinking: bool | None = None,
    speaker: str | None = None,
) -> ToAsk:
    """What would be asked at the end of a branch, of `speaker` where a group speaks.

    Unless `thinking` says it, the persona that speaks there decides whether the model is to think; what its last answer
    no longer saw is left out, or summarised as it was.

    Raises:
        PromptError: there is no such format.
        TurnError: what was kept of the persona is damaged.
    """
    form, notice = choose_format(engine.info, template, paths.folders().templates)
    told = heard_at_end(branch) if speaker is None else heard(branch, speaker=speaker)
    form = with_names(form, speaker_names(told.branch), engine.info)
    thinks = speaker_thinks(told.branch) if thinking is None else thinking
    if thinks is not None:
        form = with_thinking(form, thinks)
    with_lore = with_lore_told(KeepsNothing(), told, lambda text: len(engine.encode(text)))
    own = [with_own_ids(one, engine.info) for one in with_lore]
    return ToAsk(form, tuple(messages_now(engine, form, own, policy, note_told(told.branch))), notice)


def inspected(
    engine: Engine,
    branch: Sequence[Message],
    *,
    template: str | None,
    policy: ContextPolicy,
    thinking: bool | None = None,
) -> Inspected:
    """The prompt at the end of a branch: of the next answer, or up to the last one.

    Raises:
        PromptError: the format cannot take these messages.
        TurnError: as `to_ask`.
    """
    asked = to_ask(engine, branch, template=template, policy=policy, thinking=thinking)
    answered = bool(asked.messages) and asked.messages[-1].role == "assistant"
    layout = lay_out(engine, asked.messages, asked.form, add_generation_prompt=not answered)
    return Inspected(asked.form.name, layout, cached_tokens(engine, layout.ids))


def cached_tokens(engine: Engine, ids: Sequence[int]) -> int:
    """How many of a prompt's first tokens would not be computed anew; 0 where a model does not say."""
    return engine.cached_tokens(ids) if isinstance(engine, HasCache) else 0

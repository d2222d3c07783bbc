"""A title that a model makes of a conversation's first exchange, while nobody waits for anything else.

Until then a conversation is called by its first line (`exlchat.chat.model.clean_title`).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace

from exlchat import paths
from exlchat.chat.model import Message, clean_title
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids, prompt_text
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt.thinking import THINK, opens_thinking
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_thinking
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn_events import TitleMade, Titling
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.port import Cancellation, Engine
from exlchat.llm.request import GenerationRequest, Rank
from exlchat.llm.sampling import GREEDY
from exlchat.llm.thought_splitter import Thoughts

_EXCERPT = 1200
"""Characters of each message: what a conversation is about stands at its beginning."""
_MOST_TOKENS = 40
"""Six words take 10 to 20 tokens; a model that says more has not understood."""
_ASKED = (
    "Give this conversation a title of at most six words, in its own language. "
    "Answer with the title alone, without quotation marks.\n\n"
)
_DECORATION = "\"'`*#“”„«»‘’ "


def make_title(
    store: ConversationStore,
    engine: Engine,
    conversation_id: str,
    *,
    template: str | None,
    cancellation: Cancellation | None = None,
) -> Generator[Titling | TitleMade, None, None]:
    """Have the model title a conversation that is called after its first line; ends without `TitleMade` if cancelled.

    Args:
        store: where the title goes.
        engine: who makes it.
        conversation_id: of which conversation.
        template: prompt format by name or file; `None` takes the model's own.
        cancellation: gives it up.

    Raises:
        PromptError: the format cannot take the request.
        StoreError: the conversation cannot be read or the title not be written.
        RequestError: the engine refuses.
    """
    conversation = store.load(conversation_id)
    form = with_thinking(choose_format(engine.info, template, paths.folders().templates)[0], on=False)
    request = _request(engine, form, conversation.branch) if conversation.title_by == "first line" else None
    if request is None:
        yield TitleMade(None)
        return
    yield Titling()
    request = replace(request, keep_pages=store.is_kept)
    said: list[str] = []
    finished: Finished | None = None
    with (cancellation or Cancellation()).over(engine.generate(request)) as events:
        for event in events:
            if isinstance(event, Finished):
                finished = event
                continue
            if isinstance(event, TextDelta) and event.channel == "answer":
                said.append(event.text)
            yield Titling()
    if finished is None or finished.reason == "cancelled":
        return
    title = _title_in("".join(said), cut=finished.reason == "max_new_tokens")
    kept = title is not None and store.set_model_title(conversation_id, title)
    yield TitleMade(title if kept else None)


def _request(engine: Engine, form: PromptFormat, branch: Sequence[Message]) -> GenerationRequest | None:
    """`None` where nothing was said yet, or the context has no room."""
    said = [(one.role, answer_parts(one).answer.strip()) for one in branch if one.role != "system"]
    told = [f"{role.capitalize()}: {text[:_EXCERPT]}" for role, text in said if text][:2]
    if len(told) < 2:
        return None
    asked = [PromptMessage("user", _ASKED + "\n\n".join(told))]
    ids = prompt_ids(engine, asked, form)
    if len(ids) + _MOST_TOKENS > engine.info.max_seq_len or _thinks(engine, asked, form):
        return None
    return GenerationRequest(
        tuple(ids),
        sampling=GREEDY,
        stop=stop_conditions(engine, form),
        max_new_tokens=_MOST_TOKENS,
        thoughts=Thoughts(replace(form.thinking or THINK, opened=False)),
        rank=Rank.IDLE,
    )


def _thinks(engine: Engine, asked: Sequence[PromptMessage], form: PromptFormat) -> bool:
    """Whether the model would think first, although it was told not to: no title is worth that."""
    return form.thinking is not None and opens_thinking(prompt_text(engine, asked, form), form.thinking)


def _title_in(answer: str, *, cut: bool) -> str | None:
    """The first line of an answer, without what models put around titles."""
    lines = [line for line in answer.splitlines() if line.strip()]
    if not lines or (cut and len(lines) == 1):
        return None
    bare = re.sub(r"^\W*title\W*:", "", lines[0], flags=re.IGNORECASE).strip(_DECORATION).rstrip(".")
    return clean_title(bare) if _is_said(bare) else None


def _is_said(title: str) -> bool:
    """Whether it is mostly words: models that were never taught to answer give signs and halves of characters."""
    marks = [mark for mark in title if not mark.isspace()]
    return "\ufffd" not in title and 2 * sum(mark.isalnum() for mark in marks) > len(marks)

"""One turn: branch -> prompt -> engine -> events -> store. Runs on the engine thread."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

from exlchat.chat.answer_ids import begun_text
from exlchat.chat.conversation import AnswerRecord, Message, MessageStatus
from exlchat.chat.engine_port import EnginePort, closing_events
from exlchat.chat.journal import AnswerJournal
from exlchat.chat.kept_chances import pack_chances
from exlchat.chat.reproduce import prompt_hash
from exlchat.chat.speaking import TurnError
from exlchat.chat.store import ConversationStore, StoreError
from exlchat.chat.summary import Summarising, SummaryCancelled
from exlchat.chat.turn_plan import Beginning, Ground, Plan, TurnOptions, ground_of, planned
from exlchat.engine.events import Finished, PrefillProgress, TextDelta

__all__ = [
    "AnswerClosed",
    "AnswerStarted",
    "PrefillProgress",
    "Summarising",
    "TextDelta",
    "TurnError",
    "TurnEvent",
    "TurnOptions",
    "answer",
]


@dataclass(frozen=True, slots=True)
class AnswerStarted:
    """The answer is on disk, still without its new text.

    `notice` is a line worth showing once, `context_notice` one for this turn: what the model no longer sees.
    """

    message: Message
    prompt_tokens: int
    notice: str | None = None
    context_notice: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerClosed:
    """The last event; the only one but for `Summarising` when the turn was stopped during the summary.

    Args:
        message: the answer as it ended.
        finished: what the engine reported; `None` when it failed before its end.
        kept: `False` when it was cut before it had any new text: it is not in the store, and the tip is where it was.
        error: why the answer could not be written, as a line to show; its text is then only in `message`.
    """

    message: Message
    finished: Finished | None
    kept: bool = True
    error: str | None = None


TurnEvent = Summarising | AnswerStarted | PrefillProgress | TextDelta | AnswerClosed


def answer(
    store: ConversationStore,
    engine: EnginePort,
    conversation_id: str,
    options: TurnOptions,
    *,
    retry_of: str | None = None,
    continue_from: str | None = None,
    beginning: Beginning | None = None,
) -> Generator[TurnEvent, None, None]:
    """Have the conversation answered at its tip, where the user's message already is.

    Whatever happens once `AnswerStarted` is out, the text so far is kept: when the engine fails (`AnswerClosed` comes
    first, then its exception), when the iterator is closed, when the store cannot write (the answer goes on and
    `AnswerClosed.error` says so).

    Args:
        store: where the answer goes while it grows.
        engine: who answers.
        conversation_id: where.
        options: how.
        retry_of: the id of an answer; the new one stands beside it.
        continue_from: the id of an answer that was cut; the new one stands beside it and begins with its text.
        beginning: with what it begins instead, because another token was taken in that answer. It is kept even if it
            is stopped at once, and an undo shows the old one.

    Raises:
        TurnError: there is nothing to answer, or another model is loaded than the one whose token was taken.
        PromptError: the format cannot take the conversation.
        ContextFull: no room for an answer, and the policy cannot make any.
        StoreError: the answer could not even be begun.
        RequestError: the engine refuses.
    """
    ground = ground_of(
        store,
        conversation_id,
        retry_of=retry_of,
        continue_from=continue_from,
        beginning=beginning,
        model=engine.info.name,
    )
    if beginning is not None and beginning.ended:
        yield from _ended(store, engine, ground, beginning, options, owner=conversation_id)
        return
    try:
        plan = yield from planned(store, engine, ground, options, owner=conversation_id)
    except SummaryCancelled as stopped:
        nothing = Message("", ground.parent_id, "assistant", "", time.time(), "partial")
        yield AnswerClosed(nothing, stopped.finished, kept=False)
        return
    message = store.begin_answer(
        conversation_id,
        plan.parent_id,
        text=plan.text,
        token_ids=plan.token_ids,
        record=plan.record,
        system=plan.system,
        edited_from=continue_from,
        undoable=beginning is not None,
    )
    # An answer that goes on was thought about when it began.
    marks = None if plan.text else plan.record.thinking
    journal = AnswerJournal(store, message.id, text=plan.text, token_ids=plan.token_ids, marks=marks)
    finished: Finished | None = None
    failure: Exception | None = None
    try:
        yield AnswerStarted(message, len(plan.request.prompt_ids), plan.notice, plan.context_notice)
        with closing_events(engine.generate(plan.request)) as events:
            for event in events:
                match event:
                    case Finished():
                        finished = event
                    case TextDelta(text=text, token_ids=ids):
                        journal.add(text, ids)
                        yield event
                    case PrefillProgress():
                        yield event
    except Exception as error:
        failure = error
    except BaseException:
        _closed(store, journal, message, plan, finished)
        raise
    yield _closed(store, journal, message, plan, finished)
    if failure is not None:
        raise failure


def _ended(
    store: ConversationStore,
    engine: EnginePort,
    ground: Ground,
    beginning: Beginning,
    options: TurnOptions,
    *,
    owner: str,
) -> Generator[TurnEvent, None, None]:
    """An answer that takes the token that ends it: whole as it is, and nothing is computed."""
    assert ground.earlier is not None
    ids = beginning.token_ids
    old = ground.earlier.record or AnswerRecord(
        engine.info.name, options.template or "model", options.sampling, None, None
    )
    record = replace(
        old,
        model=engine.info.name,
        stats=None,
        finish_reason="stop_token",
        begun_tokens=len(ids),
        prompt_hash=None,
        thought=None,
        healed=(),
        chances=None,
    )
    message = store.begin_answer(
        owner,
        ground.parent_id,
        text=begun_text(engine, ids),
        token_ids=ids,
        record=record,
        edited_from=ground.earlier.id,
        undoable=True,
    )
    yield AnswerStarted(message, 0)
    yield AnswerClosed(store.close_answer(message.id, message.text, ids, "complete", record=record), None)


def _closed(
    store: ConversationStore, journal: AnswerJournal, message: Message, plan: Plan, finished: Finished | None
) -> AnswerClosed:
    """Write the end of the answer. A store that fails costs nothing but the copy on disk."""
    journal.stop()
    text, ids, status = journal.text, journal.token_ids, _status(finished)
    record = replace(plan.record, thought=journal.thought)
    if finished is not None:
        text, ids = plan.text + finished.text, plan.token_ids + finished.token_ids
        record = replace(record, stats=finished.stats, finish_reason=finished.reason)
        if finished.chances:
            record = replace(record, chances=pack_chances(finished.chances))
        if finished.healed and finished.token_ids:
            kept = len(plan.token_ids) - finished.healed
            ids = plan.token_ids[:kept] + finished.token_ids
            seen = prompt_hash(plan.request.prompt_ids[: len(plan.request.prompt_ids) - finished.healed])
            record = replace(record, begun_tokens=kept, healed=plan.token_ids[kept:], prompt_hash=seen)
    ended = replace(message, text=text, token_ids=ids, status=status, record=record)
    try:
        if status == "partial" and text == plan.text and not plan.taken:
            store.discard_answer(message.id)
            return AnswerClosed(ended, finished, kept=False)
        return AnswerClosed(store.close_answer(message.id, text, ids, status, record=record), finished)
    except StoreError as error:
        return AnswerClosed(ended, finished, error=f"the answer is not on disk: {error}")


def _status(finished: Finished | None) -> MessageStatus:
    """An answer that ended by itself or at a wished limit is complete."""
    return "partial" if finished is None or finished.reason == "cancelled" else "complete"

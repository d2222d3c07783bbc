"""One turn: branch -> prompt -> engine -> events -> store. Runs on the thread of its job."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace

from exlchat.chat.growing_answer import GrowingAnswer, begun_pieces
from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.answer_ids import begun_text
from exlchat.chat.prompt.summary import SummaryCancelled
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, TurnEvent
from exlchat.chat.turn_plan import Beginning, Ground, TurnOptions, ground_of, planned, require_another
from exlchat.llm.events import Finished, PrefillProgress, TextDelta
from exlchat.llm.port import Cancellation, Engine


def answer(
    store: ConversationStore,
    engine: Engine,
    conversation_id: str,
    options: TurnOptions,
    *,
    retry_of: str | None = None,
    continue_from: str | None = None,
    beginning: Beginning | None = None,
    speaker: str | None = None,
    only_another: bool = False,
    cancellation: Cancellation | None = None,
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
        speaker: who of a group answers; `None` takes whose turn it is. An answer that is given again, or goes on,
            stays its speaker's.
        only_another: give no answer that would be the one of `retry_of` to the letter.
        cancellation: ends it, whatever it is at.

    Raises:
        TurnError: there is nothing to answer, another model is loaded than the one whose token was taken, or the answer
            would be the same.
        PromptError: the format cannot take the conversation.
        ContextFull: no room for an answer, and the policy cannot make any.
        StoreError: the answer could not even be begun.
        RequestError: the engine refuses.
    """
    cancellation = cancellation or Cancellation()
    ground = ground_of(
        store,
        conversation_id,
        retry_of=retry_of,
        continue_from=continue_from,
        beginning=beginning,
        model=engine.info.name,
        speaker=speaker,
        settings=options.settings,
    )
    if beginning is not None and beginning.ended:
        yield from _ended(store, engine, ground, beginning, options, owner=conversation_id)
        return
    try:
        plan = yield from planned(store, engine, ground, options, owner=conversation_id, cancellation=cancellation)
        require_another(engine, ground.earlier if only_another else None, plan)
    except SummaryCancelled as stopped:
        nothing = Message("", ground.parent_id, "assistant", "", time.time(), "partial")
        yield AnswerClosed(nothing, stopped.finished, kept=False)
        return
    growing = GrowingAnswer(store, conversation_id, plan, edited_from=continue_from, undoable=beginning is not None)
    finished: Finished | None = None
    failure: Exception | None = None
    try:
        yield growing.started
        with cancellation.over(engine.generate(plan.request)) as events:
            for event in events:
                match event:
                    case Finished():
                        finished = event
                    case TextDelta():
                        growing.add(event)
                        yield event
                    case PrefillProgress():
                        yield event
    except Exception as error:
        failure = error
    except BaseException:
        growing.close(finished)
        raise
    yield growing.close(finished)
    if failure is not None:
        raise failure


def _ended(
    store: ConversationStore,
    engine: Engine,
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
        speaker=ground.told.speaker,
        settings=ground.settings,
        edited_from=ground.earlier.id,
        undoable=True,
    )
    yield AnswerStarted(message, 0, begun=begun_pieces(message.text, record.thinking))
    yield AnswerClosed(store.close_answer(message.id, message.text, ids, "complete", record=record), None)

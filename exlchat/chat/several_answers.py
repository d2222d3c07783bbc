"""Several answers to the same message, which is read once: alternatives of each other, all kept while they grow."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from exlchat.chat.growing_answer import GrowingAnswer
from exlchat.chat.prompt.summary import SummaryCancelled
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn_events import OneAnswer, SeveralEvent
from exlchat.chat.turn_plan import TurnOptions, ground_of, planned
from exlchat.llm.events import PrefillProgress, TextDelta
from exlchat.llm.port import AnswersSeveral, Cancellation, Engine


def several_answers(
    store: ConversationStore,
    engine: Engine,
    conversation_id: str,
    options: TurnOptions,
    *,
    seeds: Sequence[int | None],
    retry_of: str | None = None,
    speaker: str | None = None,
    cancellation: Cancellation | None = None,
) -> Generator[SeveralEvent, None, None]:
    """Have the conversation answered at its tip several times over; the tip is at the last of them then.

    Whatever happens, what there is of each is kept, as with `turn.answer`, whose errors are those of this one. When it
    was stopped during a summary there is no event of any answer.

    Args:
        options: how; its seed does not count.
        seeds: of 1 to 8 answers.
        retry_of: the id of an answer that the new ones stand beside.
        speaker: as of `turn.answer`.
        cancellation: ends all of them.
    """
    cancellation = cancellation or Cancellation()
    ground = ground_of(
        store,
        conversation_id,
        retry_of=retry_of,
        continue_from=None,
        beginning=None,
        model=engine.info.name,
        speaker=speaker,
    )
    if not isinstance(engine, AnswersSeveral):
        raise TurnError("this model gives one answer at a time; ask for one, and have it given again")
    try:
        plan = yield from planned(store, engine, ground, options, owner=conversation_id, cancellation=cancellation)
    except SummaryCancelled:
        return
    growing: list[GrowingAnswer] = []
    failure: Exception | None = None
    try:
        for index in range(len(seeds)):
            growing.append(GrowingAnswer(store, conversation_id, plan))
            yield OneAnswer(index, growing[index].started)
            # Whoever speaks from here on is told of once, and so are notices.
            plan = replace(
                plan,
                parent_id=growing[0].message.parent_id or plan.parent_id,
                system=None,
                notices=(),
                model_notice=None,
                context_notice=None,
            )
        with cancellation.over(engine.generate_several(plan.request, seeds)) as events:
            for event in events:
                if isinstance(event, PrefillProgress):
                    yield event
                elif isinstance(event.event, TextDelta):
                    growing[event.index].add(event.event)
                    yield OneAnswer(event.index, event.event)
                else:
                    yield OneAnswer(event.index, growing[event.index].close(event.event))
    except Exception as error:
        failure = error
    finally:
        # The newest first, each of which puts the tip back where it was before it.
        left = [(index, one.close(None)) for index, one in reversed(list(enumerate(growing))) if not one.closed]
    yield from (OneAnswer(index, closed) for index, closed in reversed(left))
    if failure is not None:
        raise failure

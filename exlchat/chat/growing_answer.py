"""An answer on its way to the disk: begun, growing, closed."""

from __future__ import annotations

from dataclasses import replace

from exlchat.chat.model import MessageStatus
from exlchat.chat.reproduce import prompt_hash
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.journal import AnswerJournal
from exlchat.chat.store.kept_chances import pack_chances
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted
from exlchat.chat.turn_plan import TurnPlan
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.thought_splitter import ThinkingMarks, ThoughtSplitter


class GrowingAnswer:
    """Begun in the store when it is made.

    Args:
        store: where it goes while it grows.
        conversation_id: where.
        plan: how it was asked for.
        edited_from: the answer that it goes on from.
        undoable: as of `ConversationStore.begin_answer`.

    Raises:
        StoreError: it could not even be begun.
    """

    def __init__(
        self,
        store: ConversationStore,
        conversation_id: str,
        plan: TurnPlan,
        *,
        edited_from: str | None = None,
        undoable: bool = False,
    ) -> None:
        self.plan = plan
        self.closed = False
        self._store = store
        self.message = store.begin_answer(
            conversation_id,
            plan.parent_id,
            text=plan.text,
            token_ids=plan.token_ids,
            record=plan.record,
            system=plan.system,
            speaker=plan.speaker,
            settings=plan.settings,
            edited_from=edited_from,
            undoable=undoable,
        )
        self._journal = AnswerJournal(
            store, self.message.id, text=plan.text, token_ids=plan.token_ids, goes_on=bool(plan.text)
        )

    @property
    def started(self) -> AnswerStarted:
        plan = self.plan
        begun = begun_pieces(plan.text, plan.record.thinking)
        return AnswerStarted(
            self.message,
            len(plan.request.prompt_ids),
            notices=plan.notices,
            model_notice=plan.model_notice,
            context_notice=plan.context_notice,
            begun=begun,
        )

    def add(self, delta: TextDelta) -> None:
        self._journal.add(delta)

    def close(self, finished: Finished | None) -> AnswerClosed:
        """Write the end of the answer. A store that fails costs nothing but the copy on disk."""
        self.closed = True
        plan, journal, message = self.plan, self._journal, self.message
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
                self._store.discard_answer(message.id)
                return AnswerClosed(ended, finished, kept=False)
            return AnswerClosed(self._store.close_answer(message.id, text, ids, status, record=record), finished)
        except StoreError as error:
            return AnswerClosed(ended, finished, error=f"the answer is not on disk: {error}")


def _status(finished: Finished | None) -> MessageStatus:
    """An answer that ended by itself or at a wished limit is complete."""
    return "partial" if finished is None or finished.reason == "cancelled" else "complete"


def begun_pieces(text: str, marks: ThinkingMarks | None) -> tuple[TextDelta, ...]:
    if marks is not None:
        return ThoughtSplitter(marks, text).before
    return (TextDelta(text),) if text else ()

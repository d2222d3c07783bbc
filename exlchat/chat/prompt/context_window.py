"""The context policy carried out: from a branch to the ids of a prompt that fits, and what is to be said about it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property

from exlchat.chat.model import Message, newest_record
from exlchat.chat.prompt.context import (
    ContextFull,
    Seen,
    plan_context,
    require_room,
    seen_since,
    turns_of,
)
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.ids import CHARACTERS_A_TOKEN, PromptMessage, most_characters, prompt_ids, prompt_messages
from exlchat.chat.prompt.note import Note
from exlchat.chat.prompt.summary import summarise, summary_possible, summary_room, with_summary
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.turn_events import Summarising
from exlchat.llm.port import Cancellation, Engine, TextModel


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """A prompt that fits.

    Args:
        ids: its ids.
        seen_from: the first message from which on everything is in it; `None` when everything is.
        summary: what it tells of those before, as in `AnswerRecord`.
        notice: what is new about that since the last answer, as a line to show.
        made: the summary of what comes before `seen_from`, when it was made just now, whether it is seen or not.
    """

    ids: tuple[int, ...]
    seen_from: str | None = None
    summary: str | None = None
    notice: str | None = None
    made: str | None = None


def messages_now(
    engine: TextModel, form: PromptFormat, branch: Sequence[Message], policy: ContextPolicy, note: Note | None
) -> list[PromptMessage]:
    """What of `branch` the model would be shown now: by the cut and the summary of its last answer."""
    record = newest_record(branch)
    if record is None or policy == "stop":
        return prompt_messages(branch, note)
    seen = seen_since(branch, record.seen_from)
    return messages_seen(engine, form, seen, record.summary if policy == "summarise" else None, note)[0]


def messages_seen(
    engine: TextModel, form: PromptFormat, seen: Seen, summary: str | None, note: Note | None
) -> tuple[list[PromptMessage], bool]:
    """What the model is shown, and whether the summary is in it."""
    messages = prompt_messages(seen.messages, note)
    told = with_summary(engine, messages, summary, form) if summary and seen.first_id is not None else None
    return (messages, False) if told is None else (told, True)


def fit_context(
    engine: Engine,
    form: PromptFormat,
    branch: Sequence[Message],
    policy: ContextPolicy,
    *,
    note: Note | None = None,
    begun: Sequence[int] = (),
    earlier: Message | None = None,
    max_new_tokens: int | None = None,
    keep_pages: bool = True,
    cancellation: Cancellation,
) -> Generator[Summarising, None, ContextWindow]:
    """Choose what of `branch` the model sees, and have the rest summarised if the policy says so.

    Everything is decided by what is on disk: asked again, it gives the same prompt.

    Args:
        engine: who answers.
        form: how messages become a prompt.
        branch: the conversation, which ends with a message of the user.
        policy: what to do when it does not fit.
        note: what stands in the prompt beside the messages.
        begun: ids that follow the prompt: those of the answer `earlier`, which goes on.
        earlier: an answer to the same message, whose summary is as good as a new one.
        max_new_tokens: the longest answer.
        keep_pages: as of `GenerationRequest`, for a summary.
        cancellation: of the turn.

    Raises:
        ContextFull: it does not fit, and the policy cannot help.
        SummaryCancelled: the user stopped the turn.
        PromptError: the format cannot take the conversation.
        RequestError: the engine refuses.
    """
    view = _View(engine, form, branch, note=note, begun=begun, earlier=earlier, max_new_tokens=max_new_tokens)
    if policy == "stop":
        _require_readable(branch, engine.info.max_seq_len)
        ids = view.ids(Seen(tuple(branch)), None)
        can_drop = len(turns_of(branch)) > 1
        require_room(len(ids), engine.info.max_seq_len, max_new_tokens=max_new_tokens, can_drop=can_drop)
        return ContextWindow(tuple(ids))
    _require_readable(turns_of(branch)[-1], engine.info.max_seq_len)
    if policy == "drop":
        return view.window(view.plan(summarised=False), None)
    return (yield from view.summarised(cancellation, keep_pages=keep_pages))


def _require_readable(branch: Sequence[Message], max_seq_len: int) -> None:
    """Refuses what cannot fit before it is encoded: a file of many megabytes that was pasted takes the tokenizer
    minutes, and it cannot be stopped. The tokens that are told are then the fewest that it can have.
    """
    characters = sum(len(message.text) for message in branch)
    if characters > most_characters(max_seq_len):
        raise ContextFull(characters // CHARACTERS_A_TOKEN, 0, max_seq_len, can_drop=len(turns_of(branch)) > 1)


class _View:
    """One branch, and the prompts that can be made of it. `begun` stands behind each."""

    def __init__(
        self,
        engine: Engine,
        form: PromptFormat,
        branch: Sequence[Message],
        *,
        note: Note | None,
        begun: Sequence[int],
        earlier: Message | None,
        max_new_tokens: int | None,
    ) -> None:
        self._engine = engine
        self._form = form
        self._branch = branch
        self._note = note
        self._begun = begun
        self._max_new_tokens = max_new_tokens
        self._limit = engine.info.max_seq_len
        # An answer that goes on has its own cut; one that is given again begins from the one before it, as it did.
        goes_on = earlier is not None and bool(begun)
        self._previous = earlier.record if earlier is not None and goes_on else newest_record(branch)
        self._known = [one.record for one in (*branch, *([earlier] if earlier else [])) if one.record is not None]

    def ids(self, seen: Seen, summary: str | None) -> list[int]:
        messages, _ = messages_seen(self._engine, self._form, seen, summary, self._note)
        return prompt_ids(self._engine, messages, self._form) + list(self._begun)

    def plan(self, *, summarised: bool) -> Seen:
        def size(seen: Seen) -> int:
            summary = self._summary_of(seen) if summarised else None
            unwritten = summarised and seen.first_id is not None and summary is None and self._can_summarise
            return len(self.ids(seen, summary)) + (summary_room(self._engine) if unwritten else 0)

        previous = self._previous.seen_from if self._previous else None
        return plan_context(self._branch, size, self._limit, previous=previous, max_new_tokens=self._max_new_tokens)

    def summarised(
        self, cancellation: Cancellation, *, keep_pages: bool
    ) -> Generator[Summarising, None, ContextWindow]:
        try:
            seen = self.plan(summarised=True)
        except ContextFull:
            return self.window(self.plan(summarised=False), None)
        summary, made = self._summary_of(seen), None
        if seen.first_id is not None and summary is None and self._can_summarise:
            before, told = self._told(seen)
            summary = made = yield from summarise(
                self._engine, self._form, seen.before[told:], before, cancellation, keep_pages=keep_pages
            )
        try:
            return self.window(seen, summary, made)
        except ContextFull:
            # The text of the summary took more ids than the model needed for it.
            return self.window(seen, "", made)

    def window(self, seen: Seen, summary: str | None, made: str | None = None) -> ContextWindow:
        messages, told = messages_seen(self._engine, self._form, seen, summary, self._note)
        ids = prompt_ids(self._engine, messages, self._form) + list(self._begun)
        require_room(len(ids), self._limit, max_new_tokens=self._max_new_tokens)
        if summary and not told:
            summary = ""
        return ContextWindow(tuple(ids), seen.first_id, summary, self._notice(seen, summary), made)

    @cached_property
    def _can_summarise(self) -> bool:
        system = [one for one in self._branch if one.role == "system"]
        short = prompt_messages([*system, turns_of(self._branch)[-1][-1]])
        shown = with_summary(self._engine, short, "x", self._form) is not None
        return shown and summary_possible(self._engine, self._form)

    def _summary_of(self, seen: Seen) -> str | None:
        """The summary of exactly what comes before `seen`, if there is one; what an answer has seen comes first."""
        if seen.first_id is None:
            return None
        kept = [one.summary for one in self._branch if one.id == seen.first_id]
        recorded = [one.summary for one in self._known if one.seen_from == seen.first_id]
        return next((one for one in reversed([*kept, *recorded]) if one is not None), None)

    def _told(self, seen: Seen) -> tuple[str, int]:
        """The summary that reaches furthest into what comes before `seen`, and how many of those messages it covers."""
        places = {message.id: place for place, message in enumerate(seen.before)}
        kept = [(one.id, one.summary) for one in seen.before]
        recorded = [(one.seen_from, one.summary) for one in self._known if one.seen_from is not None]
        reached = [(places[ident], told) for ident, told in (*kept, *recorded) if told and ident in places]
        place, summary = max(reversed(reached), key=lambda one: one[0], default=(0, ""))
        return summary, place

    def _notice(self, seen: Seen, summary: str | None) -> str | None:
        old = (self._previous.seen_from, bool(self._previous.summary)) if self._previous else (None, False)
        if seen.first_id is None or old == (seen.first_id, bool(summary)):
            return None
        one = seen.dropped == 1
        messages = "1 earlier message is" if one else f"{seen.dropped} earlier messages are"
        if summary:
            return f"{messages} seen by the model as a summary only; /summary shows it, /pin keeps a message"
        return f"{messages} no longer seen by the model; /pin keeps a message, a larger --context holds more"

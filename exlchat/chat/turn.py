"""One turn: branch -> prompt -> engine -> events -> store. Runs on the engine thread."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from exlchat import paths
from exlchat.chat.answer_ids import answer_ids, with_own_ids
from exlchat.chat.context import ContextPolicy
from exlchat.chat.conversation import AnswerRecord, Message, MessageStatus
from exlchat.chat.cost import shared_beginning
from exlchat.chat.engine_port import EnginePort, closing_events
from exlchat.chat.journal import AnswerJournal
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_thinking
from exlchat.chat.prompt_ids import prompt_messages, prompt_text
from exlchat.chat.reproduce import prompt_hash
from exlchat.chat.sight import see
from exlchat.chat.speaking import TurnError, speaker_name, speaker_thinks, with_lore_told
from exlchat.chat.stop_conditions import stop_conditions
from exlchat.chat.store import ConversationStore, StoreError
from exlchat.chat.summary import Summarising, SummaryCancelled
from exlchat.chat.thinking import ThinkingMarks, opens_thinking
from exlchat.engine.events import Finished, GenerationRequest, PrefillProgress, TextDelta
from exlchat.engine.sampling_settings import SamplingSettings

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
class TurnOptions:
    """How an answer is wanted.

    Args:
        sampling: how tokens are drawn.
        template: prompt format by name or file; `None` takes the model's own.
        seed: makes the answer reproducible; `None` takes a fresh one.
        max_new_tokens: the longest answer; `None` goes on until the context is full.
        stop: strings and token ids that end it, beside those of model and format.
        context_policy: what happens when the conversation does not fit into the context.
        thinking: whether the model is to think first, where its format can be told; `None` leaves it to the format.
    """

    sampling: SamplingSettings
    template: str | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: tuple[str | int, ...] = ()
    context_policy: ContextPolicy = "stop"
    thinking: bool | None = None


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


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is settled before a word is generated. `text` and `token_ids` are those of a cut answer that goes on."""

    parent_id: str
    request: GenerationRequest
    record: AnswerRecord
    notice: str | None
    context_notice: str | None
    system: Message | None
    text: str = ""
    token_ids: tuple[int, ...] = ()


def answer(
    store: ConversationStore,
    engine: EnginePort,
    conversation_id: str,
    options: TurnOptions,
    *,
    retry_of: str | None = None,
    continue_from: str | None = None,
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

    Raises:
        TurnError: there is nothing to answer.
        PromptError: the format cannot take the conversation.
        ContextFull: no room for an answer, and the policy cannot make any.
        StoreError: the answer could not even be begun.
        RequestError: the engine refuses.
    """
    ground = _ground(store, conversation_id, retry_of=retry_of, continue_from=continue_from)
    try:
        plan = yield from _planned(store, engine, ground, options, owner=conversation_id)
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


@dataclass(frozen=True, slots=True)
class _Ground:
    """What is to be answered. `system`: a prompt that is not on the branch yet.

    `earlier`: an answer given to it before; `goes_on`: the new one begins with its text.
    """

    parent_id: str
    branch: tuple[Message, ...]
    system: Message | None
    earlier: Message | None
    goes_on: bool


def _ground(
    store: ConversationStore, conversation_id: str, *, retry_of: str | None, continue_from: str | None
) -> _Ground:
    conversation = store.load(conversation_id)
    old = retry_of or continue_from
    earlier = None if old is None else store.message(old)
    if earlier is not None and earlier.role != "assistant":
        raise TurnError("only an answer can be given again or continued")
    parent_id = conversation.tip_id if earlier is None else earlier.parent_id
    branch = conversation.branch if earlier is None else store.branch(parent_id)
    # A system prompt set after the old answer is meant for the new one, but it is not on the way to it.
    system = _speaker(conversation.branch) if retry_of is not None else None
    before = _speaker(branch)
    if system is not None and before is not None and (system.text, system.persona) == (before.text, before.persona):
        system = None
    told = branch if system is None else (*branch, system)
    last = next((one for one in reversed(told) if one.role != "system"), None)
    if parent_id is None or last is None or last.role != "user":
        raise TurnError("there is no message to answer; write one, or have the last answer given again")
    return _Ground(parent_id, told, system, earlier, goes_on=continue_from is not None)


def _speaker(branch: Sequence[Message]) -> Message | None:
    """The message that says who speaks at the end of a branch."""
    return next((one for one in reversed(branch) if one.role == "system"), None)


def _planned(
    store: ConversationStore, engine: EnginePort, ground: _Ground, options: TurnOptions, *, owner: str
) -> Generator[Summarising, None, _Plan]:
    form, notice = choose_format(engine.info, options.template, paths.folders().templates)
    thinking = speaker_thinks(ground.branch) if options.thinking is None else options.thinking
    if thinking is not None:
        form = with_thinking(form, thinking)
    told = with_lore_told(store, ground.branch, engine.count)
    ground = replace(ground, branch=tuple(with_own_ids(one, engine.info) for one in told))
    cut = with_own_ids(ground.earlier, engine.info) if ground.goes_on and ground.earlier is not None else None
    kept = () if cut is None else answer_ids(engine, cut.text, cut.token_ids)
    sight = yield from see(
        engine,
        form,
        ground.branch,
        options.context_policy,
        begun=kept,
        earlier=ground.earlier,
        max_new_tokens=options.max_new_tokens,
    )
    if sight.made is not None and sight.seen_from is not None:
        # Before the answer: one that is stopped or fails without a word is removed, with its record.
        store.keep_summary(sight.seen_from, sight.made)
    request = GenerationRequest(
        prompt_ids=sight.ids,
        sampling=options.sampling,
        stop=(*options.stop, *stop_conditions(engine, form)),
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
        owner=owner,
        beginning=shared_beginning(engine, prompt_messages(ground.branch), form),
    )
    record = AnswerRecord(
        engine.info.name,
        form.name,
        options.sampling,
        None,
        None,
        seen_from=sight.seen_from,
        summary=sight.summary,
        begun_tokens=len(kept),
        prompt_hash=prompt_hash(sight.ids),
        stop=options.stop,
        persona=speaker_name(ground.branch),
        thinking_on=thinking,
        thinking=_marks(engine, form, ground),
    )
    text = "" if cut is None else cut.text
    return _Plan(ground.parent_id, request, record, notice, sight.notice, ground.system, text, kept)


def _marks(engine: EnginePort, form: PromptFormat, ground: _Ground) -> ThinkingMarks | None:
    """How thoughts are marked in the answer. One that goes on began as the one that was cut."""
    if ground.goes_on and ground.earlier is not None and ground.earlier.record is not None:
        return ground.earlier.record.thinking
    if form.thinking is None:
        return None
    asked = prompt_text(engine, prompt_messages(ground.branch), form)
    return replace(form.thinking, opened=opens_thinking(asked, form.thinking))


def _closed(
    store: ConversationStore, journal: AnswerJournal, message: Message, plan: _Plan, finished: Finished | None
) -> AnswerClosed:
    """Write the end of the answer. A store that fails costs nothing but the copy on disk."""
    journal.stop()
    text, ids, status = journal.text, journal.token_ids, _status(finished)
    record = replace(plan.record, thought=journal.thought)
    if finished is not None:
        text, ids = plan.text + finished.text, plan.token_ids + finished.token_ids
        record = replace(record, stats=finished.stats, finish_reason=finished.reason)
    ended = replace(message, text=text, token_ids=ids, status=status, record=record)
    try:
        if status == "partial" and text == plan.text:
            store.discard_answer(message.id)
            return AnswerClosed(ended, finished, kept=False)
        return AnswerClosed(store.close_answer(message.id, text, ids, status, record=record), finished)
    except StoreError as error:
        return AnswerClosed(ended, finished, error=f"the answer is not on disk: {error}")


def _status(finished: Finished | None) -> MessageStatus:
    """An answer that ended by itself or at a wished limit is complete."""
    return "partial" if finished is None or finished.reason == "cancelled" else "complete"

"""What is settled of a turn before a word is generated: what is answered, how, and with what the answer begins."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exlchat import paths
from exlchat.chat.answer_options import PLAIN, AnswerOptions
from exlchat.chat.answer_request import negative_ids, thoughts_of
from exlchat.chat.model import AnswerRecord, Message, settings_of
from exlchat.chat.prompt.answer_ids import answer_ids, begun_text, encode_after, with_own_ids
from exlchat.chat.prompt.context import seen_since
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.context_window import fit_context
from exlchat.chat.prompt.cost import shared_beginning
from exlchat.chat.prompt.ids import prompt_messages, prompt_text
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt.thinking import opens_thinking
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_names, with_thinking
from exlchat.chat.reproduce import prompt_hash
from exlchat.chat.speakers import char_of
from exlchat.chat.speaking import (
    Heard,
    TurnError,
    group_at,
    heard,
    note_told,
    speaker_name,
    speaker_names,
    speaker_thinks,
    with_lore_told,
)
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn_events import Summarising
from exlchat.llm.port import Cancellation, Engine, NamesWhatIsNotHeld
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import SamplingSettings
from exlchat.llm.thought_splitter import ThinkingMarks


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How an answer is wanted.

    Args:
        sampling: how tokens are drawn.
        template: prompt format by name or file; `None` takes the model's own.
        seed: makes the answer reproducible; `None` takes a fresh one.
        max_new_tokens: the longest answer; `None` goes on until the context is full.
        context_policy: what happens when the conversation does not fit into the context.
        speech: what it is asked to say and not to say.
        settings: how the conversation is spoken to from the answer on, as of `Message`; `None` leaves that as it was at
            the end of the branch that is shown.
    """

    sampling: SamplingSettings
    template: str | None = None
    seed: int | None = None
    max_new_tokens: int | None = None
    context_policy: ContextPolicy = "stop"
    speech: AnswerOptions = PLAIN
    settings: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an answer begins that takes another token somewhere and goes on from there.

    Args:
        model: whose tokens these are.
        token_ids: all of them, the one that was taken the last.
        ended: a token was taken that ends an answer: it is not among the ids, and nothing follows.
    """

    model: str
    token_ids: tuple[int, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What is settled before a word is generated. `text` and `token_ids` are those of a cut answer that goes on.

    `taken`: another token was taken there, so that they are worth keeping without a word more. `speaker`: who of a
    group gives it.
    """

    parent_id: str
    request: GenerationRequest
    record: AnswerRecord
    notices: tuple[str, ...]
    model_notice: str | None
    context_notice: str | None
    system: Message | None
    settings: Mapping[str, Any] | None = field(default=None, hash=False)
    speaker: str | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """What is to be answered, as whoever answers hears it. `system`: a prompt that is not on the branch yet;
    `settings`: how the conversation is spoken to, where the branch does not say it.

    `earlier`: an answer given to it before; `goes_on`: the new one begins with its text, or with `beginning`.
    """

    parent_id: str
    told: Heard
    system: Message | None
    earlier: Message | None
    goes_on: bool
    beginning: Beginning | None = None
    settings: Mapping[str, Any] | None = field(default=None, hash=False)


def ground_of(
    store: ConversationStore,
    conversation_id: str,
    *,
    retry_of: str | None,
    continue_from: str | None,
    beginning: Beginning | None,
    model: str,
    speaker: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Ground:
    """What is there to be answered by the model of this name; other arguments as of `turn.answer`.

    Raises:
        TurnError: nothing, the token that was taken is another model's, or nobody of a group is there to answer.
    """
    conversation = store.load(conversation_id)
    old = retry_of or continue_from
    earlier = None if old is None else store.message(old)
    if earlier is not None and earlier.role != "assistant":
        raise TurnError("only an answer can be given again or continued")
    if beginning is not None and beginning.model != model:
        raise TurnError(f"the token that was taken is one of {beginning.model}; {model} is loaded now")
    parent_id = conversation.tip_id if earlier is None else earlier.parent_id
    branch = conversation.branch if earlier is None else store.branch(parent_id)
    # A system prompt set after the old answer is meant for the new one, but it is not on the way to it.
    system = _speaker(conversation.branch) if retry_of is not None else None
    before = _speaker(branch)
    if system is not None and before is not None and (system.text, system.persona) == (before.text, before.persona):
        system = None
    who = None if earlier is None else char_of(earlier)
    if who is not None and system is not None and not _has(system, who):
        # Whoever has left since gives the answer again as one of those who were there.
        system = None
    if who is not None and group_at(branch if system is None else (system,)) is not None:
        speaker = who
    told = branch if system is None else (*branch, system)
    wanted = settings_of(conversation.branch) if settings is None else settings
    as_heard = heard(told, speaker=speaker, settings=wanted)
    last = next((one for one in reversed(as_heard.branch) if one.role != "system"), None)
    if parent_id is None or last is None or last.role != "user":
        raise TurnError("there is no message to answer; write one, or have the last answer given again")
    return Ground(
        parent_id,
        as_heard,
        system,
        earlier,
        goes_on=continue_from is not None,
        beginning=beginning,
        settings=None if wanted == settings_of(branch) else wanted,
    )


def _has(system: Message, name: str) -> bool:
    try:
        group = group_at((system,))
    except TurnError:
        return False
    return group is not None and group.member(name) is not None


def _speaker(branch: Sequence[Message]) -> Message | None:
    return next((one for one in reversed(branch) if one.role == "system"), None)


def planned(
    store: ConversationStore,
    engine: Engine,
    ground: Ground,
    options: TurnOptions,
    *,
    owner: str,
    cancellation: Cancellation,
) -> Generator[Summarising, None, TurnPlan]:
    """The request, and what is noted of it; raises as `turn.answer`."""
    form, notice = choose_format(engine.info, options.template, paths.folders().templates)
    told = ground.told
    form = with_names(form, speaker_names(told.branch), engine.info)
    note = note_told(told.branch, ground.settings)
    speech = options.speech
    thinking = speaker_thinks(told.branch) if speech.think is None else speech.think
    if thinking is not None:
        form = with_thinking(form, thinking)
    with_lore = with_lore_told(store, told, lambda text: len(engine.encode(text)))
    branch = tuple(with_own_ids(one, engine.info) for one in with_lore)
    text, kept = _begun(engine, ground, speech.begin)
    window = yield from fit_context(
        engine,
        form,
        branch,
        options.context_policy,
        note=note,
        begun=kept,
        earlier=ground.earlier,
        max_new_tokens=options.max_new_tokens,
        keep_pages=store.is_kept,
        cancellation=cancellation,
    )
    if window.made is not None and window.seen_from:
        # Before the answer: one that is stopped or fails without a word is removed, with its record.
        store.keep_summary(window.seen_from, window.made)
    marks = _marks(engine, form, ground, branch)
    request = GenerationRequest(
        prompt_ids=window.ids,
        sampling=options.sampling,
        stop=(*speech.stop, *told.others, *stop_conditions(engine, form)),
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
        owner=owner,
        beginning=shared_beginning(engine, prompt_messages(branch), form),
        begun=len(kept),
        # A token that somebody took stays the one that it is.
        heal=speech.heal and engine.capabilities.heal and bool(kept) and ground.beginning is None,
        banned=speech.ban,
        min_new_tokens=speech.min_tokens,
        constraint=speech.constraint,
        thoughts=thoughts_of(engine, marks, speech, begun=text),
        guidance_ids=negative_ids(
            engine,
            form,
            seen=seen_since(branch, window.seen_from),
            summary=window.summary,
            note=note,
            sampling=options.sampling,
            speech=speech,
            begun=kept,
        ),
        stop_repeating=speech.stop_repeating,
        alternatives=speech.logprobs,
        draft=speech.drafted_by(draft_model=engine.capabilities.draft_model),
        keep_pages=store.is_kept,
    )
    not_held = None
    if speech.constraint is not None and isinstance(engine, NamesWhatIsNotHeld):
        not_held = engine.constraint_notice(speech.constraint)
    record = AnswerRecord(
        engine.info.name,
        form.name,
        options.sampling,
        None,
        None,
        seen_from=window.seen_from,
        summary=window.summary,
        begun_tokens=len(kept),
        prompt_hash=prompt_hash(window.ids),
        persona=speaker_name(branch),
        thinking_on=thinking,
        thinking=marks,
        speech=speech,
        note=note,
    )
    return TurnPlan(
        ground.parent_id,
        request,
        record,
        () if not_held is None else (not_held,),
        notice,
        window.notice,
        ground.system,
        ground.settings,
        told.speaker,
        text,
        kept,
        taken=bool(text and ground.beginning),
    )


def require_another(engine: Engine, earlier: Message | None, plan: TurnPlan) -> None:
    """Refuse what was given to the same prompt in the same way, and came to its end, by what never draws.

    Raises:
        TurnError: the answer would be the `earlier` one to the letter.
    """
    old, new = None if earlier is None or earlier.edited_from is not None else earlier.record, plan.record
    if old is None or old.stats is None or not engine.capabilities.same_when_greedy:
        return
    asked_alike = (old.model, old.prompt_hash, old.speech) == (new.model, new.prompt_hash, new.speech)
    whole = old.finish_reason in ("stop_token", "stop_string", "repeating") or (
        old.finish_reason == "max_new_tokens" and old.stats.new_tokens == plan.request.max_new_tokens
    )
    if old.sampling == new.sampling and new.sampling.greedy and asked_alike and whole:
        raise TurnError("the answer would be the same at temperature 0; /set temperature 0.7 has another one given")


def _begun(engine: Engine, ground: Ground, wanted: str) -> tuple[str, tuple[int, ...]]:
    """The text and the ids that the answer begins with; those `wanted` where it is a new one."""
    if ground.beginning is not None:
        return begun_text(engine, ground.beginning.token_ids), ground.beginning.token_ids
    if not ground.goes_on or ground.earlier is None:
        return wanted, tuple(encode_after(engine, wanted)) if wanted else ()
    cut = with_own_ids(ground.earlier, engine.info)
    return cut.text, answer_ids(engine, cut.text, cut.token_ids)


def _marks(engine: Engine, form: PromptFormat, ground: Ground, branch: Sequence[Message]) -> ThinkingMarks | None:
    """How thoughts are marked in the answer. One that goes on began as the one that was cut."""
    if ground.goes_on and ground.earlier is not None and ground.earlier.record is not None:
        return ground.earlier.record.thinking
    if form.thinking is None:
        return None
    asked = prompt_text(engine, prompt_messages(branch), form)
    return replace(form.thinking, opened=opens_thinking(asked, form.thinking))

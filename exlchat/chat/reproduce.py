"""An answer asked for again, exactly as its record says it came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from exlchat import paths
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.answer_request import negative_ids, thoughts_of
from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.answer_ids import begun_text, with_own_ids
from exlchat.chat.prompt.context import Seen, seen_since
from exlchat.chat.prompt.context_window import messages_seen
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt_format import PromptFormat, choose_format, with_names, with_thinking
from exlchat.chat.speakers import char_of
from exlchat.chat.speaking import TurnError, group_at, heard, speaker_names
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.store.rows import pack_ids
from exlchat.llm.port import Engine, TextModel
from exlchat.llm.request import DraftKind, GenerationRequest


class NotReproducibleError(Exception):
    """An answer that cannot be given again exactly: one line that says why."""


def prompt_hash(ids: Sequence[int]) -> str:
    """The name of a prompt in an answer's record: SHA-256 of its ids as little-endian 32-bit words."""
    return hashlib.sha256(pack_ids(ids)).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptAgain:
    """The prompt of an answer, made once more.

    Args:
        form: its format, told to think or not as it was.
        seen: what of the conversation the model saw.
        messages: the same as they are told.
        begun: ids that it went on from: the end of the prompt.
        ids: all of it.
        others: what ended the answer beside that, because others of a group would begin to speak.
        same: whether these are the ids that the model saw; `None` where nothing tells.
    """

    form: PromptFormat
    seen: Seen
    messages: tuple[PromptMessage, ...]
    begun: tuple[int, ...]
    ids: tuple[int, ...]
    others: tuple[str, ...]
    same: bool | None


def record_of(message: Message) -> AnswerRecord:
    """How an answer came to be.

    Raises:
        NotReproducibleError: that was not kept.
    """
    if message.role != "assistant":
        raise NotReproducibleError("this is no answer; name one that a model gave")
    if message.record is None or message.record.stats is None:
        raise NotReproducibleError("how this answer came to be was not kept; it was cut by a crash, or written by hand")
    return message.record


def prompt_again(store: ConversationStore, engine: TextModel, message: Message) -> PromptAgain:
    """The prompt that an answer had, by its record; in the tokens of `engine`, which may be another model's.

    Raises:
        NotReproducibleError: no record, or the group that it was given in is damaged.
        PromptError: its format is not there, or cannot take the conversation.
        StoreError: the conversation cannot be read.
    """
    return prompt_by_record(store, engine, message, record_of(message))


def prompt_by_record(
    store: ConversationStore, engine: TextModel, message: Message, record: AnswerRecord
) -> PromptAgain:
    """As `prompt_again`, also of an answer that a crash has cut, whose record is not whole."""
    form, _ = choose_format(engine.info, record.template, paths.folders().templates)
    if record.thinking_on is not None:
        form = with_thinking(form, record.thinking_on)
    whole = store.branch(message.parent_id)
    try:
        told = heard(whole, speaker=char_of(message) if group_at(whole) is not None else None)
    except TurnError as error:
        raise NotReproducibleError(str(error)) from error
    branch = tuple(with_own_ids(one, engine.info) for one in told.branch)
    form = with_names(form, speaker_names(branch), engine.info)
    seen = seen_since(branch, record.seen_from)
    messages, _ = messages_seen(engine, form, seen, record.summary, record.note)
    own = record.model == engine.info.name
    begun = message.token_ids[: record.begun_tokens] if own else ()
    ids = (*prompt_ids(engine, messages, form), *begun)
    known = own and record.prompt_hash is not None
    same = prompt_hash(ids) == record.prompt_hash if known else None
    return PromptAgain(form, seen, tuple(messages), begun, ids, told.others, same)


def changed(record: AnswerRecord) -> str:
    """Why a prompt is not the same any more."""
    return (
        f"the prompt is no longer what the model saw; the format {record.template}, what it tells of the date, "
        "a pin, or the text of the conversation has changed"
    )


def _drafted_by(speech: AnswerOptions, engine: Engine) -> DraftKind:
    """Who guesses; where there was a draft model and is none now, nobody: that changes nothing but the speed."""
    draft_model = engine.capabilities.draft_model
    wanted = speech.drafted_by(draft_model=draft_model)
    return "off" if wanted == "model" and not draft_model else wanted


def request_again(store: ConversationStore, engine: Engine, message_id: str) -> GenerationRequest:
    """What to ask of `engine` to get an answer's new ids once more.

    The ids of a cut answer that it went on from (`AnswerRecord.begun_tokens`) are the end of the prompt.

    Raises:
        NotReproducibleError: no record, another model, or the prompt is not the same any more.
        PromptError: its format is not there, or cannot take the conversation.
        StoreError: the answer cannot be read.
    """
    message = store.message(message_id)
    record = record_of(message)
    if record.model != engine.info.name:
        raise NotReproducibleError(f"this is an answer of {record.model}; {engine.info.name} is loaded")
    again = prompt_again(store, engine, message)
    if again.same is False:
        raise NotReproducibleError(changed(record))
    new_tokens = 0 if record.stats is None else record.stats.new_tokens
    speech, begun = record.speech, (*again.begun, *record.healed)
    text = begun_text(engine, begun)
    return GenerationRequest(
        prompt_ids=(*again.ids, *record.healed),
        sampling=record.sampling,
        stop=(*speech.stop, *again.others, *stop_conditions(engine, again.form)),
        # An answer that was stopped or had a limit ends where it did.
        max_new_tokens=max(len(message.token_ids) - record.begun_tokens, new_tokens, 1),
        seed=None if record.stats is None else record.stats.seed,
        begun=len(begun),
        heal=bool(record.healed),
        banned=speech.ban,
        min_new_tokens=speech.min_tokens,
        constraint=speech.constraint,
        thoughts=thoughts_of(engine, record.thinking, speech, begun=text),
        guidance_ids=negative_ids(
            engine,
            again.form,
            seen=again.seen,
            summary=record.summary,
            note=record.note,
            sampling=record.sampling,
            speech=speech,
            begun=begun,
        ),
        stop_repeating=speech.stop_repeating,
        alternatives=speech.logprobs,
        draft=_drafted_by(speech, engine),
    )

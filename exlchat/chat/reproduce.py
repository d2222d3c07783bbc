"""An answer asked for again, exactly as its record says it came to be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from exlchat import paths
from exlchat.chat.answer_ids import with_own_ids
from exlchat.chat.context import seen_since
from exlchat.chat.engine_port import EnginePort
from exlchat.chat.prompt_format import choose_format, with_thinking
from exlchat.chat.prompt_ids import prompt_ids, prompt_messages
from exlchat.chat.rows import pack_ids
from exlchat.chat.stop_conditions import stop_conditions
from exlchat.chat.store import ConversationStore
from exlchat.chat.summary import with_summary
from exlchat.engine.events import GenerationRequest


class NotReproducibleError(Exception):
    """An answer that cannot be given again exactly: one line that says why."""


def prompt_hash(ids: Sequence[int]) -> str:
    """The name of a prompt in an answer's record: SHA-256 of its ids as little-endian 32-bit words."""
    return hashlib.sha256(pack_ids(ids)).hexdigest()


def request_again(store: ConversationStore, engine: EnginePort, message_id: str) -> GenerationRequest:
    """What to ask of `engine` to get an answer's new ids once more.

    The ids of a cut answer that it went on from (`AnswerRecord.begun_tokens`) are the end of the prompt.

    Raises:
        NotReproducibleError: no record, another model, or the prompt is not the same any more.
        PromptError: its format is not there, or cannot take the conversation.
        StoreError: the answer cannot be read.
    """
    message = store.message(message_id)
    record = message.record
    if record is None or record.stats is None:
        raise NotReproducibleError("how this answer came to be was not kept; it was cut by a crash, or written by hand")
    if record.model != engine.info.name:
        raise NotReproducibleError(f"this is an answer of {record.model}; {engine.info.name} is loaded")
    form, _ = choose_format(engine.info, record.template, paths.folders().templates)
    if record.thinking_on is not None:
        form = with_thinking(form, record.thinking_on)
    branch = tuple(with_own_ids(one, engine.info) for one in store.branch(message.parent_id))
    seen = seen_since(branch, record.seen_from)
    messages = prompt_messages(seen.messages)
    if record.summary and seen.first_id is not None:
        messages = with_summary(engine, messages, record.summary, form) or messages
    ids = (*prompt_ids(engine, messages, form), *message.token_ids[: record.begun_tokens])
    if record.prompt_hash is not None and prompt_hash(ids) != record.prompt_hash:
        raise NotReproducibleError(
            f"the prompt is no longer what the model saw; the format {record.template}, what it tells of the date, or "
            "the text of the conversation has changed"
        )
    return GenerationRequest(
        prompt_ids=ids,
        sampling=record.sampling,
        stop=(*record.stop, *stop_conditions(engine, form)),
        # An answer that was stopped or had a limit ends where it did.
        max_new_tokens=max(len(message.token_ids) - record.begun_tokens, record.stats.new_tokens, 1),
        seed=record.stats.seed,
    )

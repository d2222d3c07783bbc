"""Texts into ids and back, and messages into a prompt, in the bodies of vLLM, llama.cpp and TabbyAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exlchat.api.asked import FindSpeaker, Speaker
from exlchat.api.chat_body import ChatBody, read_messages, template_variables
from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.api.logprobs import speller
from exlchat.api.plan import prompt_of, require_readable
from exlchat.api.wishes import Wishes
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import prompt_text

_MOST_IDS = 2_000_000


def tokenize(fields: Fields, find: FindSpeaker) -> dict[str, Any]:
    """`/tokenize`: vLLM's body has `prompt` or `messages`, llama.cpp's has `content`. Raises `ApiError`."""
    speaker = find(fields.text("model"))
    engine = speaker.model.engine
    if "content" in fields:
        ids = _encoded(speaker, "content", fields, front=fields.flag("add_special"), special="parse_special")
        if fields.flag("with_pieces"):
            return {
                "tokens": [{"id": one, "piece": piece} for one, piece in zip(ids, _pieces(speaker, ids), strict=True)]
            }
        return {"tokens": ids}
    if "messages" in fields:
        ids = list(prompt_of(speaker.model, _chat(fields), speaker.voice).ids)
    else:
        front = fields.flag("add_special_tokens", default=True)
        ids = _encoded(speaker, "prompt", fields, front=front, special=None)
    told = {"count": len(ids), "max_model_len": engine.info.max_seq_len, "tokens": ids}
    return {**told, "token_strs": _pieces(speaker, ids)} if fields.flag("return_token_strs") else told


def detokenize(fields: Fields, find: FindSpeaker) -> dict[str, Any]:
    """`/detokenize`: the text by the names that vLLM and llama.cpp have for it. Raises `ApiError`."""
    text = _decoded(find(fields.text("model")), fields)
    return {"prompt": text, "content": text}


def encode(fields: Fields, find: FindSpeaker) -> dict[str, Any]:
    """TabbyAPI's `/v1/token/encode`, of a text or of messages. Raises `ApiError`."""
    speaker = find(fields.text("model"))
    if isinstance(fields.raw("text"), list):
        ids = list(prompt_of(speaker.model, _chat(fields, "text"), speaker.voice).ids)
    else:
        front = fields.flag("add_bos_token", default=True)
        ids = _encoded(speaker, "text", fields, front=front, special="encode_special_tokens")
    return {"tokens": ids, "length": len(ids)}


def decode(fields: Fields, find: FindSpeaker) -> dict[str, Any]:
    """TabbyAPI's `/v1/token/decode`. Raises `ApiError`."""
    fields.raw("add_bos_token")
    return {"text": _decoded(find(fields.text("model")), fields, special="decode_special_tokens")}


def apply_template(fields: Fields, find: FindSpeaker) -> dict[str, Any]:
    """llama.cpp's `/apply-template`: the prompt of messages. Raises `ApiError`."""
    speaker = find(fields.text("model"))
    body = _chat(fields)
    try:
        made = prompt_of(speaker.model, body, speaker.voice)
        return {"prompt": prompt_text(speaker.model.engine, made.messages, made.form)}
    except PromptError as error:
        raise bad("messages", str(error)) from None


def _chat(fields: Fields, name: str = "messages") -> ChatBody:
    return ChatBody("", read_messages(fields, name), Wishes(), variables=template_variables(fields))


def _encoded(speaker: Speaker, name: str, fields: Fields, *, front: bool, special: str | None) -> list[int]:
    engine, text = speaker.model.engine, fields.text(name)
    require_readable(engine, name, len(text))
    bos = engine.info.bos_token
    before = engine.encode(bos) if front and bos and not text.startswith(bos) else []
    return [*before, *engine.encode(text, special=special is None or fields.flag(special, default=True))]


def _decoded(speaker: Speaker, fields: Fields, special: str | None = None) -> str:
    ids = fields.listed("tokens")
    size = speaker.model.engine.info.vocab_size
    if ids is None or len(ids) > _MOST_IDS or not all(type(one) is int and 0 <= one < size for one in ids):
        raise bad("tokens", f"tokens must be a list of ids from 0 to {size - 1}")
    return speaker.model.engine.decode(ids, special=special is None or fields.flag(special, default=True))


def _pieces(speaker: Speaker, ids: Sequence[int]) -> list[str]:
    spelled = speller(speaker.model.engine)(ids)
    return [spelled[one].decode("utf-8", "replace") for one in ids]

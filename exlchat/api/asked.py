"""A body with all that answering it takes: who answers, what is asked of the engine, what becomes of its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from exlchat.api.chat_body import read_chat_body
from exlchat.api.chat_model import ChatModel
from exlchat.api.chat_reply import ChatReply
from exlchat.api.completion_body import read_completion_body
from exlchat.api.completion_plan import plan_completion
from exlchat.api.completion_reply import CompletionReply
from exlchat.api.fields import Fields
from exlchat.api.head import Head
from exlchat.api.plan import plan_chat
from exlchat.api.telling import telling
from exlchat.api.voice import Voice
from exlchat.llm.events import Event, Finished, Scored
from exlchat.llm.request import GenerationRequest, ScoreRequest


class Reply(Protocol):
    """Events in, JSON out. Chunks are JSON texts; who streams them takes these, who does not takes the whole."""

    @property
    def ended(self) -> bool:
        """Whether every answer has."""

    def first(self) -> Iterator[str]:
        """The chunks before any event."""

    def feed(self, index: int, event: Event | Scored) -> Iterator[str]:
        """The chunks that an event of one request is told by; requests are counted as in `Asked`."""

    def last(self) -> Iterator[str]:
        """The chunks behind all answers."""

    def whole(self) -> dict[str, Any]:
        """The reply as one object, when all answers have ended."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model under one of its names. `fingerprint` is the same while answers come to the same."""

    name: str
    model: ChatModel
    voice: Voice
    fingerprint: str


FindSpeaker = Callable[[str], Speaker]
"""By the name in a request, which may be empty. Raises `ApiError`: there is none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be carried out.

    Args:
        speaker: who answers.
        requests: what the engine is asked: one for each answer, then one for each prompt that is scored.
        reply: what becomes of its events.
        stream: whether chunks are wanted as they come.
        ignored: fields of the body that mean nothing here.
    """

    speaker: Speaker
    requests: tuple[GenerationRequest | ScoreRequest, ...]
    reply: Reply
    stream: bool
    ignored: tuple[str, ...]


def ask_chat(fields: Fields, find: FindSpeaker) -> Asked:
    """Of a body of `/v1/chat/completions`.

    Raises:
        ApiError, RequestError: it cannot be carried out, in one line.
    """
    body = read_chat_body(fields)
    speaker = find(body.model)
    plan = plan_chat(speaker.model, body, speaker.voice)
    first = plan.requests[0]
    model = speaker.model

    def ended(content: str, finished: Finished) -> None:
        model.said.remember(model.engine.info.path, plan.before, plan.shown + content, plan.said(finished))

    reply = ChatReply(
        Head(speaker.name, speaker.fingerprint),
        len(plan.requests),
        telling(speaker.model.engine, body.wishes, first.stop),
        ended=ended,
        said_first=plan.said_first,
        prompt_ids=tuple(first.prompt_ids),
        calls=plan.calls,
    )
    return Asked(speaker, plan.requests, reply, body.wishes.stream, fields.ignored)


def ask_completion(fields: Fields, find: FindSpeaker) -> Asked:
    """Of a body of `/v1/completions`; raises as `ask_chat`."""
    body = read_completion_body(fields)
    speaker = find(body.model)
    engine = speaker.model.engine
    plan = plan_completion(engine, body, speaker.voice)
    told = telling(engine, body.wishes, plan.stops)
    reply = CompletionReply(Head(speaker.name, speaker.fingerprint), plan.prompts, body.wishes.answers, told)
    return Asked(speaker, plan.requests, reply, body.wishes.stream, fields.ignored)

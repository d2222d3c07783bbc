"""Events of answers -> the reply of `/v1/chat/completions`: chunks as they come, or one object in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from exlchat.api.head import Head
from exlchat.api.usage import FINISH_REASONS, Thinking, figures, usage
from exlchat.llm.events import Event, Finished, TextDelta

_PREFIX = "chatcmpl-"
_FIELDS = {"answer": "content", "thought": "reasoning_content"}


class _Answer:
    """One of them, as far as it has come."""

    def __init__(self, said_first: str) -> None:
        self.texts: dict[str, list[str]] = {"content": [said_first], "reasoning_content": []}
        self.thinking = Thinking()
        self.finished: Finished | None = None


class ChatReply:
    """Of one request, for one client.

    Args:
        answers: how many were asked for.
        include_usage: whether chunks end with one of counts.
        said_first: the text that each answer begins with.
    """

    def __init__(self, head: Head, answers: int, *, include_usage: bool, said_first: str = "") -> None:
        self._head = head
        self._answers = [_Answer(said_first) for _ in range(answers)]
        self._said_first = said_first
        self._include_usage = include_usage
        self._begin = head.chunks("chat.completion.chunk", _PREFIX)
        self._end = '], "usage": null}' if include_usage else "]}"

    @property
    def ended(self) -> bool:
        """Whether every answer has."""
        return all(one.finished for one in self._answers)

    def first(self) -> Iterator[str]:
        """The chunks before any event."""
        for index in range(len(self._answers)):
            yield self._chunk(index, {"role": "assistant", "content": self._said_first})

    def feed(self, index: int, event: Event) -> Iterator[str]:
        """The chunks that an event of one answer is told by."""
        answer = self._answers[index]
        match event:
            case TextDelta():
                answer.thinking.add(event)
                name = _FIELDS.get(event.channel)
                if name is not None and event.text:
                    answer.texts[name].append(event.text)
                    yield self._chunk(index, {name: event.text})
            case Finished():
                answer.finished = event
                yield self._chunk(index, {}, event)

    def last(self) -> Iterator[str]:
        """The chunks behind all answers."""
        if self._include_usage:
            yield f"{self._begin}], {json.dumps(self._counts())[1:]}"

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        return {**self._head.of("chat.completion", _PREFIX), "choices": choices, **self._counts()}

    def _choice(self, index: int, answer: _Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.texts["content"])}
        if answer.texts["reasoning_content"]:
            message["reasoning_content"] = "".join(answer.texts["reasoning_content"])
        ended = {"logprobs": None, **_ending(answer.finished)}
        return {"index": index, "message": message, **ended}

    def _chunk(self, index: int, delta: dict[str, Any], finished: Finished | None = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, **_ending(finished)}
        return f"{self._begin}{json.dumps(choice)}{self._end}"

    def _counts(self) -> dict[str, Any]:
        ended = [one.finished for one in self._answers if one.finished is not None]
        return {"usage": usage(ended, [one.thinking for one in self._answers]), "exlchat": figures(ended[0].stats)}


def _ending(finished: Finished | None) -> dict[str, Any]:
    if finished is None:
        return {"finish_reason": None}
    found: dict[str, Any] = {"finish_reason": FINISH_REASONS[finished.reason]}
    if finished.reason == "repeating":
        found["stop_reason"] = "repeating"
    return found

"""Events of answers -> the reply of `/v1/chat/completions`: chunks as they come, or one object in the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from exlchat.api.head import Head
from exlchat.api.telling import Telling, chances_of
from exlchat.api.tools.families import ToolCall
from exlchat.api.tools.reading import CallReader, as_told
from exlchat.api.usage import Thinking, figures, usage
from exlchat.llm.events import Event, Finished, Scored, TextDelta

_PREFIX = "chatcmpl-"
_FIELDS = {"answer": "content", "thought": "reasoning_content"}


class _Answer:
    """One of them, as far as it has come."""

    def __init__(self, said_first: str, calls: CallReader | None) -> None:
        self.held = None if calls is None else calls.held()
        self.calls: list[ToolCall] = []
        self.texts: dict[str, list[str]] = {"content": [said_first], "reasoning_content": []}
        self.logprobs: list[dict[str, Any]] = []
        self.thinking = Thinking()
        self.finished: Finished | None = None


class ChatReply:
    """Of one request, for one client.

    Args:
        answers: how many were asked for.
        ended: gets the content of an answer that has ended.
        said_first: the text that each answer begins with.
        prompt_ids: of the prompt, for clients that want ids.
        calls: how calls of tools are read; `None` where there is nothing to be called.
    """

    def __init__(
        self,
        head: Head,
        answers: int,
        telling: Telling,
        *,
        ended: Callable[[str, Finished], None],
        said_first: str = "",
        prompt_ids: tuple[int, ...] = (),
        calls: CallReader | None = None,
    ) -> None:
        self._head, self._telling, self._ended, self._calls = head, telling, ended, calls
        self._answers = [_Answer(said_first, calls) for _ in range(answers)]
        self._said_first, self._prompt_ids = said_first, prompt_ids
        self._begin = head.chunks("chat.completion.chunk", _PREFIX)
        self._end = '], "usage": null}' if telling.include_usage else "]}"

    @property
    def ended(self) -> bool:
        """Whether every answer has."""
        return all(one.finished for one in self._answers)

    def first(self) -> Iterator[str]:
        """The chunks before any event."""
        ids = {"prompt_token_ids": self._prompt_ids} if self._telling.token_ids else {}
        for index in range(len(self._answers)):
            yield self._chunk(index, {"role": "assistant", "content": self._said_first}, ids=ids)

    def feed(self, index: int, event: Event | Scored) -> Iterator[str]:
        """The chunks that an event of one answer is told by."""
        answer = self._answers[index]
        match event:
            case TextDelta():
                yield from self._more(index, answer, event)
            case Finished():
                answer.finished = event
                yield from self._called(index, answer, event)
                self._ended("".join(answer.texts["content"]), event)
                yield self._chunk(index, {}, event)

    def last(self) -> Iterator[str]:
        """The chunks behind all answers."""
        if self._telling.include_usage:
            yield f"{self._begin}], {json.dumps(self._counts())[1:]}"

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        ids = {"prompt_token_ids": self._prompt_ids} if self._telling.token_ids else {}
        return {**self._head.of("chat.completion", _PREFIX), "choices": choices, **ids, **self._counts()}

    def _more(self, index: int, answer: _Answer, delta: TextDelta) -> Iterator[str]:
        answer.thinking.add(delta)
        name, names = _FIELDS.get(delta.channel), self._telling.names
        logprobs = None
        if names is not None and delta.chances and name == "content":
            logprobs = names.chat(chances_of(delta))
            answer.logprobs += logprobs["content"]
        text = delta.text
        if answer.held is not None and name == "content":
            text = answer.held.feed(delta)
        if name is not None and text:
            answer.texts[name].append(text)
        ids = {"token_ids": delta.token_ids} if self._telling.token_ids and delta.token_ids else {}
        if logprobs is not None or ids or (name is not None and text):
            yield self._chunk(index, {name: text} if name is not None else {}, logprobs=logprobs, ids=ids)

    def _called(self, index: int, answer: _Answer, finished: Finished) -> Iterator[str]:
        """What was held back until it was certain whether it is a call."""
        if answer.held is None or self._calls is None:
            return
        answer.calls = self._calls.calls(finished)
        text = "" if answer.calls else answer.held.rest()
        if text:
            answer.texts["content"].append(text)
            yield self._chunk(index, {"content": text})
        if answer.calls:
            yield self._chunk(index, {"tool_calls": as_told(answer.calls, counted=True)})

    def _choice(self, index: int, answer: _Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.texts["content"])}
        if answer.texts["reasoning_content"]:
            message["reasoning_content"] = "".join(answer.texts["reasoning_content"])
        if answer.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = as_told(answer.calls, counted=False)
        logprobs = None if self._telling.names is None else {"content": answer.logprobs, "refusal": None}
        ids = {}
        if self._telling.token_ids and answer.finished is not None:
            ids = {"token_ids": answer.finished.token_ids}
        ending = self._ending(answer, answer.finished)
        return {"index": index, "message": message, "logprobs": logprobs, **ids, **ending}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finished: Finished | None = None,
        *,
        logprobs: Any = None,
        ids: Any = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **(ids or {})}
        choice |= self._ending(self._answers[index], finished)
        return f"{self._begin}{json.dumps(choice)}{self._end}"

    def _ending(self, answer: _Answer, finished: Finished | None) -> dict[str, Any]:
        found = self._telling.ending(finished)
        return found | {"finish_reason": "tool_calls"} if finished is not None and answer.calls else found

    def _counts(self) -> dict[str, Any]:
        ended = [one.finished for one in self._answers if one.finished is not None]
        thoughts = sum(one.thinking.tokens for one in self._answers)
        return {"usage": usage([ended], thoughts), "exlchat": figures(ended[0].stats)}

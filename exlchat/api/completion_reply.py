"""Events of answers -> the reply of `/v1/completions`: text, with the prompt before it where that is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.api.head import Head
from exlchat.api.logprobs import Chances, Offset
from exlchat.api.telling import Telling, chances_of
from exlchat.api.usage import figures, usage
from exlchat.llm.events import Event, Finished, Scored, TextDelta

_PREFIX = "cmpl-"
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True, slots=True)
class PromptTold:
    """A prompt as a client is told of it.

    Args:
        ids: as the model reads them.
        text: that each answer begins with; empty unless the prompt is echoed.
        unshown: so many of the ids stand before that text.
        scored: whether its probabilities are told; a `Scored` event of the prompt comes then.
    """

    ids: tuple[int, ...]
    text: str = ""
    unshown: int = 0
    scored: bool = False


class _Answer:
    """One of them, as far as it has come. `waits`: what came before its prompt was scored."""

    def __init__(self, prompt: int, told: PromptTold) -> None:
        self.prompt, self.told = prompt, told
        self.text = [told.text]
        self.logprobs: dict[str, list[Any]] = {name: [] for name in _LISTS}
        self.offset = Offset()
        self.finished: Finished | None = None
        self.waits: list[TextDelta | Finished] | None = [] if told.scored else None


class CompletionReply:
    """Of one request, for one client.

    Args:
        prompts: in order. Answers are counted prompt by prompt, and behind them prompts that are scored.
        answers: how many were asked for of each.
    """

    def __init__(self, head: Head, prompts: Sequence[PromptTold], answers: int, telling: Telling) -> None:
        self._head, self._telling = head, telling
        self._prompts = prompts
        self._answers = [_Answer(number, told) for number, told in enumerate(prompts) for _ in range(answers)]
        self._begin = head.chunks("text_completion", _PREFIX)
        self._end = '], "usage": null}' if telling.include_usage else "]}"

    @property
    def ended(self) -> bool:
        """Whether every answer has."""
        return all(one.finished for one in self._answers)

    def first(self) -> Iterator[str]:
        """The chunks before any event."""
        for index, answer in enumerate(self._answers):
            if answer.waits is None and (answer.told.text or self._telling.token_ids):
                yield from self._prompt(index, answer, None)

    def feed(self, index: int, event: Event | Scored) -> Iterator[str]:
        """The chunks that an event of one answer, or of one prompt, is told by."""
        if isinstance(event, Scored):
            yield from self._scored(index - len(self._answers), event)
        elif isinstance(event, TextDelta | Finished):
            answer = self._answers[index]
            if answer.waits is not None:
                answer.waits.append(event)
            else:
                yield from self._more(index, answer, event)

    def last(self) -> Iterator[str]:
        """The chunks behind all answers."""
        if self._telling.include_usage:
            yield f"{self._begin}], {json.dumps(self._counts())[1:]}"

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        choices = [self._choice(index, answer) for index, answer in enumerate(self._answers)]
        return {**self._head.of("text_completion", _PREFIX), "choices": choices, **self._counts()}

    def _scored(self, prompt: int, scored: Scored) -> Iterator[str]:
        ids = self._prompts[prompt].ids
        # Before the first token there is nothing, and behind the last one stands the answer's.
        chances: Chances = [(ids[0], None), *zip(ids[1:], scored.places, strict=False)]
        for index, answer in enumerate(self._answers):
            if answer.prompt == prompt:
                waiting, answer.waits = answer.waits or [], None
                yield from self._prompt(index, answer, chances)
                for event in waiting:
                    yield from self._more(index, answer, event)

    def _prompt(self, index: int, answer: _Answer, chances: Chances | None) -> Iterator[str]:
        logprobs = None if chances is None else self._logprobs(answer, chances, answer.told.unshown)
        ids = {"prompt_token_ids": answer.told.ids} if self._telling.token_ids else {}
        yield self._chunk(index, answer.told.text, logprobs=logprobs, ids=ids)

    def _more(self, index: int, answer: _Answer, event: TextDelta | Finished) -> Iterator[str]:
        if isinstance(event, Finished):
            answer.finished = event
            yield self._chunk(index, "", event)
            return
        answer.text.append(event.text)
        logprobs = None
        if self._telling.names is not None and event.chances:
            logprobs = self._logprobs(answer, chances_of(event))
        ids = {"token_ids": event.token_ids} if self._telling.token_ids and event.token_ids else {}
        if event.text or logprobs is not None or ids:
            yield self._chunk(index, event.text, logprobs=logprobs, ids=ids)

    def _logprobs(self, answer: _Answer, chances: Chances, unshown: int = 0) -> dict[str, Any] | None:
        names = self._telling.names
        if names is None:
            return None
        # What stands before the text takes none of it.
        before = [names.text(chances[:unshown], Offset())] if unshown else []
        for one in before:
            one["text_offset"] = [0] * unshown
        found: dict[str, list[Any]] = {name: [] for name in _LISTS}
        for one in (*before, names.text(chances[unshown:], answer.offset)):
            for name in _LISTS:
                found[name] += one[name]
                answer.logprobs[name] += one[name]
        return found

    def _choice(self, index: int, answer: _Answer) -> dict[str, Any]:
        logprobs = None if self._telling.names is None else answer.logprobs
        ids: dict[str, Any] = {}
        if self._telling.token_ids and answer.finished is not None:
            ids = {"token_ids": answer.finished.token_ids, "prompt_token_ids": answer.told.ids}
        ending = self._telling.ending(answer.finished)
        return {"index": index, "text": "".join(answer.text), "logprobs": logprobs, **ids, **ending}

    def _chunk(
        self, index: int, text: str, finished: Finished | None = None, *, logprobs: Any = None, ids: Any = None
    ) -> str:
        choice = {"index": index, "text": text, "logprobs": logprobs, **(ids or {}), **self._telling.ending(finished)}
        return f"{self._begin}{json.dumps(choice)}{self._end}"

    def _counts(self) -> dict[str, Any]:
        ended: list[list[Finished]] = [[] for _ in self._prompts]
        for one in self._answers:
            if one.finished is not None:
                ended[one.prompt].append(one.finished)
        return {"usage": usage(ended), "exlchat": figures(ended[0][0].stats)}

"""Several answers to one prompt, which is read once: their tokens go through the weights together.

Each answer is, to the last bit, what it would be alone with its seed (but in a cache of few bits without a captured
step, where an answer alone sees the end of its prompt as it was before it was rounded). Where one pass takes a token of
each sequence (`verify_step.CapturedRows`), eight answers read the weights as often as one; elsewhere they take turns.
Where the host has to know nothing before a draw, the device runs ahead of it (`several_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from torch import Tensor

from exlchat.engine.decode.answer_step import AnswerStep
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import pages_of
from exlchat.engine.sampling.device import is_steered, why_not_on_device
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answering import Answering, AnswerParts
from exlchat.engine.schedule.masked_tokens import draw_once
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.events import DecodePath, Finished, OneOfSeveral
from exlchat.llm.request import GenerationRequest

_LONG_ANSWER = 4096  # tokens that there is room for, where nothing bounds an answer: few get so long


class SequencePasses(Protocol):
    """See `verify_step.CapturedRows`."""

    def feed_each(self, ids: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        """Logits `[len(ids), vocab]` behind one more token of each sequence."""


def have_room(cache: KVCache, request: GenerationRequest, answers: int) -> bool:
    """Whether so many sequences that begin with a prompt which is in the cache can grow at the same time.

    Each has room for all that it may say or, where that is not bounded, for a long answer; not with windows, whose old
    pages may be needed again.
    """
    if cache.has_windows:
        return False
    prompt = len(request.prompt_ids)
    own = (cache.pool.size - pages_of(prompt)) // answers
    most = _LONG_ANSWER if request.max_new_tokens is None else request.max_new_tokens
    return (prompt // PAGE_TOKENS + own) * PAGE_TOKENS >= min(prompt + most, cache.max_seq_len)


def drawn_by_host(request: GenerationRequest) -> bool:
    """Whether each token of several answers is drawn on the host; Mirostat's state is kept there."""
    sampling = request.sampling
    return bool(request.alternatives) or is_steered(sampling) or why_not_on_device(sampling) is not None


def side_by_side(answers: Sequence[Answering], finished: Callable[[int], Finished]) -> Iterator[OneOfSeveral]:
    """Lets answers take turns, a token each, until all have ended.

    Args:
        finished: the last event of an answer, asked when it has ended.
    """
    going = {index: answer.events() for index, answer in enumerate(answers)}
    try:
        while going:
            for index, events in list(going.items()):
                answers[index].make_room()
                for told in islice(events, 1):
                    if told is not None:
                        yield OneOfSeveral(index, told)
                    break
                else:
                    del going[index]
                    yield OneOfSeveral(index, finished(index))
    finally:
        for answer in answers:
            answer.close()


class SideBySide:
    """Sources of several answers, each behind the last token of its own.

    Args:
        passes: take one token of each.
        step: draws on the device.
        rules: of the model.
    """

    def __init__(self, passes: SequencePasses, step: AnswerStep, rules: DeviceRules) -> None:
        self._passes = passes
        self._step = step
        self._rules = rules
        self._open: list[_Beside] = []

    def open(self, parts: AnswerParts, answer: Answering) -> _Beside:
        """A source behind the last token of an answer, which is not in the cache yet."""
        source = _Beside(self, parts, answer)
        self._open.append(source)
        return source

    def close(self, source: _Beside) -> None:
        """It wants no more tokens."""
        if source in self._open:
            self._open.remove(source)

    def feed(self) -> None:
        """The last token of every answer that waits for what comes behind it."""
        waiting = [one for one in self._open if one.wants]
        ids = [one.answer.context[-1] for one in waiting]
        caches = [one.parts.feeder.sequence for one in waiting]
        # A pass uses the memory of the one before again; as they take turns, each has drawn by then.
        assert all(one.logits is None for one in self._open)
        rows = self._passes.feed_each(ids, caches)
        for one, token, logits in zip(waiting, ids, rows, strict=True):
            one.logits, one.wants = logits, False
            one.parts.feeder.sequence.extend([token])

    def draw(self, logits: Tensor, parts: AnswerParts, answer: Answering) -> int:
        """The next token of an answer, on the device."""
        return draw_once(self._step, logits, answer.context, self._rules.draws(parts, answer), parts.rules.mask)


class _Beside:
    """The tokens of one of them. A `TokenSource`."""

    path: DecodePath = "synchronous"
    busy = False

    def __init__(self, together: SideBySide, parts: AnswerParts, answer: Answering) -> None:
        self.parts = parts
        self.answer = answer
        self.logits: Tensor | None = None
        """Behind the last token, where it has been fed."""
        self.wants = False
        """Whether its answer goes on behind the last token, which has not been fed."""
        self._together = together
        self._by_host = drawn_by_host(parts.request)

    def follow(self, token: int) -> int:
        """See `TokenSource`."""
        if self.logits is None:
            self._together.feed()
        logits, self.logits = self.logits, None
        assert logits is not None
        assert token == self.answer.context[-1]
        if self._by_host:
            return self.answer.draw(logits)
        return self._together.draw(logits, self.parts, self.answer)

    def go_on(self) -> None:
        """The next pass is for this one too."""
        self.wants = True

    def close(self) -> None:
        """See `TokenSource`."""
        self._together.close(self)

"""One answer while it is made: tokens from a source, text from them, why it ends: by itself, at a bound, cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling import NothingAllowedError, NotNumbersError, Sampler
from exlchat.engine.schedule.answer_clock import AnswerClock
from exlchat.engine.schedule.constraint_start import ConstraintStart
from exlchat.engine.schedule.guidance import Guidance
from exlchat.engine.schedule.healing import Healing
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.scoring import chances
from exlchat.engine.schedule.thought_watch import ThoughtWatch
from exlchat.engine.schedule.token_rules import TokenRules
from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.engine.text.stream import TextStream
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.constraint import ConstraintError
from exlchat.llm.events import FinishReason, PlaceChances, TextDelta
from exlchat.llm.info import ModelError
from exlchat.llm.repetition_watch import RepetitionWatch
from exlchat.llm.request import GenerationRequest

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class GenerationParts:
    """What an answer is made with.

    Args:
        sequence: holds the prompt.
        cancelled: whether somebody wants it to end.
    """

    request: GenerationRequest
    runner: Runner
    sequence: KVSequence
    tokenizer: Tokenizer
    sampler: Sampler
    rules: TokenRules
    clock: AnswerClock
    stop_ids: frozenset[int]
    cancelled: Callable[[], bool]
    guidance: Guidance | None = None
    healing: Healing | None = None


class GenerationState:
    """Makes one answer.

    Args:
        parts: the sampler has begun with the prompt.
        logits: float32 `[vocab]`, behind the prompt.
        open_source: gives tokens behind the last one of the answer, which is not in the sequence yet.
    """

    def __init__(
        self, parts: GenerationParts, logits: Tensor, open_source: Callable[[GenerationState], TokenSource]
    ) -> None:
        request = parts.request
        prompt = list(request.prompt_ids)
        self.parts = parts
        self._open_source = open_source
        self._prompt_length = len(prompt)
        self._prompt_logits = logits
        self.context = prompt.copy()
        """Prompt and answer so far."""
        self.room = parts.sequence.cache.max_seq_len
        """Tokens that the context holds."""
        self.reason: FinishReason | None = None
        self.stop_id: int | None = None
        """The token that ended it, which is no part of it."""
        self.text = ""
        """All that was shown."""
        self.chances: list[PlaceChances] = []
        """Of the answer's tokens, where they were asked for."""
        self._drawn: PlaceChances | None = None
        self._told = 0
        self._opened_under = (False, False)
        self._source: TokenSource | None = None
        self._foreseen: list[int] = []
        self._watch = RepetitionWatch() if request.stop_repeating else None
        self._thoughts = ThoughtWatch(request.thoughts)
        self._start = ConstraintStart(request.constraint_from)
        stops = [stop for stop in request.stop if isinstance(stop, str)]
        before = prompt[len(prompt) - request.begun :] if request.begun else []
        tokenizer = parts.tokenizer
        self._stream = TextStream(
            tokenizer.decode, stops, before=before, banned=request.banned, fallback=tokenizer.fallback
        )
        self._hidden = parts.healing.text if parts.healing else ""
        parts.rules.grammar_holds = parts.rules.grammar_holds and self._start.passed and not self._thoughts.inside

    @property
    def ids(self) -> list[int]:
        return self.context[self._prompt_length :]

    @property
    def count(self) -> int:
        return len(self.context) - self._prompt_length

    @property
    def most(self) -> int:
        """How many tokens may still come."""
        room, asked = self.room - len(self.context), self.parts.request.max_new_tokens
        return room if asked is None else min(room, asked - self.count)

    def reserve(self) -> None:
        """Room for one token more. Raises `PoolFullError`."""
        self.parts.sequence.reserve(min(len(self.context) + 1, self.room))

    def close(self) -> None:
        self.leave_source()
        if self.parts.guidance is not None:
            self.parts.guidance.close()

    def leave_source(self) -> None:
        """What it has begun to compute is not asked for; it may go on by another source."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def give_up(self) -> TextDelta | None:
        """It is cancelled where it stands: what is left to be told."""
        self.reason = "cancelled"
        self.leave_source()
        return self._told_text(self._stream.finish(), last=True)

    @property
    def foresees(self) -> bool:
        """Whether the next token is drawn already."""
        return bool(self._foreseen)

    def foresee(self, tokens: list[int], surprise: Callable[[], float] | None) -> None:
        """A source that leaves has drawn these, and knows Mirostat's mu behind them, as nobody else does."""
        if self.reason is None:
            self._foreseen = tokens
            if surprise is not None:
                self.parts.sampler.steer(surprise())

    def note(self, chances: PlaceChances | None) -> None:
        """Of the next token, where the device has drawn it."""
        self._drawn = chances

    def draw(self, logits: Tensor) -> int:
        """The next token of float `[vocab]`, by all that holds for it."""
        if self._foreseen:
            return self._foreseen.pop(0)
        parts, request = self.parts, self.parts.request
        guidance = None if parts.guidance is None else parts.guidance.logits(self.ids).to(logits.device)
        allowed = parts.rules.allowed
        if allowed is not None:
            allowed = allowed.to(logits.device, non_blocking=True)
        token = parts.sampler.draw(logits, guidance=guidance, allowed=allowed, barred=parts.rules.barred)
        if request.alternatives:
            (self._drawn,) = chances(logits[None], [token], request.alternatives)
        return token

    def events(self) -> Iterator[TextDelta | None]:
        """Its text, until there is a reason to end; `None` for a token that tells nothing yet.

        Between two of them nobody waits for anything, so that several answers can take turns.
        """
        token = self._first_token(lambda: self._prompt_logits)
        while token is not None and token not in self.parts.stop_ids:
            text = self._take(token)
            if self._stream.back:
                token = self._again(self._stream.back)
                if self.parts.cancelled():
                    self.reason = "cancelled"
                    break
                continue
            self.reason = self._why_end()
            if self.reason is None and not self._thoughts.over:
                self._begin_next()
            yield self._told_text(text)
            self.reason = self.reason or self._limit()
            if self.reason is not None:
                break
            if self._thoughts.over:
                yield from self._close_thoughts()
                token = None if self.reason else self._first_token(self._logits_here)
            else:
                while self._opened().stands_by():
                    if self.parts.cancelled():
                        self.reason = "cancelled"
                        break
                    yield None
                if self.reason is not None:
                    break
                token = self._next(token)
        else:
            self.reason, self.stop_id = self.reason or "stop_token", token
        self.leave_source()
        yield self._told_text(self._stream.finish(), last=True)

    def _take(self, token: int) -> str:
        """Adds a token; the text that may be shown now."""
        parts = self.parts
        parts.clock.token()
        parts.sampler.accept(token)
        parts.rules.accept(token)
        self.context.append(token)
        if parts.request.alternatives:
            self.chances.append(self._drawn or PlaceChances(None, ()))
        if self._watch is not None:
            self._watch.push(token)
        text = self._stream.push(token)
        self._thoughts.push(text)
        self._start.push(token, text)
        if self.parts.request.constraint is not None:
            parts.rules.grammar_holds = self._start.passed and not self._thoughts.inside
        return text

    def _again(self, back: int) -> int:
        """Another token in the place of the first of the last `back`, which led to a banned string."""
        self.leave_source()
        parts, kept = self.parts, len(self.context) - back
        dropped = self.context[kept]
        del self.context[kept:]
        del self.chances[kept - self._prompt_length :]
        parts.clock.back(back)
        parts.sampler.back(back)
        parts.rules.back(back)
        parts.rules.bar(dropped)
        if self._watch is not None:
            self._watch.back(back)
        self._thoughts.back(back)
        self._start.back(back)
        return self._first_token(self._logits_here)

    def _logits_here(self) -> Tensor:
        """Behind the context, computed again as far as need be."""
        sequence = self.parts.sequence
        there = sequence.cut(min(len(sequence), max(len(self.context) - 1, self._prompt_length)))
        if there < len(self.context):
            return self.parts.runner.last_logits(sequence, self.context[there:])
        return self._prompt_logits

    def _first_token(self, logits: Callable[[], Tensor]) -> int:
        return self._explained(lambda: self.draw(logits()))

    def _begin_next(self) -> None:
        # What is drawn already comes from no device, which may go on behind it.
        if self._source is not None and self._opened_under != (self.parts.rules.hold, self.foresees):
            self.leave_source()
        if self._source is None:
            self._opened()
        else:
            self._explained(self._source.go_on)

    def _opened(self) -> TokenSource:
        if self._source is None:
            parts = self.parts
            self._opened_under = parts.rules.hold, self.foresees
            if len(parts.sequence) == len(self.context):
                # The source before it has fed the last token, for logits that nobody has any more.
                parts.runner.cut(parts.sequence, len(self.context) - 1)
            self._source = self._explained(lambda: self._open_source(self))
            self.parts.clock.path = self._source.path
            self._explained(self._source.go_on)
        return self._source

    def _next(self, token: int) -> int:
        return self._explained(lambda: self._opened().follow(token))

    def _explained(self, compute: Callable[[], _Made]) -> _Made:
        try:
            return compute()
        except NotNumbersError as error:
            dtype = self.parts.runner.transformer.dtype
            raise ModelError(f"{error}; the weights are damaged or overflow in {dtype}") from error
        except (NothingAllowedError, ConstraintError) as error:
            raise ModelError(f"the answer cannot go on: {error}") from error

    def _close_thoughts(self) -> Iterator[TextDelta | None]:
        """The closing mark, as if the model had said it."""
        limit = self.parts.request.thoughts
        assert limit is not None
        self.leave_source()
        self._drawn = None
        for token in limit.closing_ids:
            text = self._take(token)
            yield self._told_text(text)
            self.reason = self.reason or self._limit()
        self._thoughts.close()
        if self.parts.request.constraint is not None:
            self.parts.rules.grammar_holds = self._start.passed

    def _why_end(self) -> FinishReason | None:
        if self._stream.stopped:
            return "stop_string"
        if self.parts.rules.finished:
            return "stop_token"
        if self._watch is not None and self._watch.stuck:
            return "repeating"
        return self._limit()

    def _limit(self) -> FinishReason | None:
        """Why the answer must end before another token, if it must."""
        request = self.parts.request
        if self.parts.cancelled():
            return "cancelled"
        if request.max_new_tokens is not None and self.count >= request.max_new_tokens:
            return "max_new_tokens"
        if len(self.context) >= self.room:
            return "context_full"
        return None

    def _told_text(self, text: str, *, last: bool = False) -> TextDelta | None:
        """The event of a token, if any: ids are told when they cannot be taken back any more."""
        if self._hidden:
            hidden = len(self._hidden)
            self._hidden, text = self._hidden[len(text) :], text[hidden:]
        self.text += text
        certain = self.count if last else self.count - self._stream.held_tokens
        ids = tuple(self.context[self._prompt_length + self._told : self._prompt_length + certain])
        told = tuple(self.chances[self._told : certain])
        self._told = max(self._told, certain)
        return TextDelta(text, ids, told) if text or ids else None

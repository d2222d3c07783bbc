"""Where an answer's tokens come from: the device, the host, or guesses that are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from exlchat.engine.decode.answer_step import AnswerStep
from exlchat.engine.draft.drafting import DraftedTokens, Drafter, DraftLength
from exlchat.engine.draft.ngram_drafter import NgramDrafter
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import is_steered, why_not_on_device
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answering import Answering, AnswerParts
from exlchat.engine.schedule.feeding import Feeder
from exlchat.engine.schedule.masked_tokens import MaskedTokens
from exlchat.engine.schedule.run_ahead import RunAheadTokens
from exlchat.engine.schedule.token_source import SynchronousTokens, TokenSource
from exlchat.llm.request import GenerationRequest

_Row = TypeVar("_Row")
# What each row more of a pass costs beside the first, before one was measured. A GPU reads the weights once for all; a
# CPU computes each row.
_GPU_ROW, _CPU_ROW = 0.05, 0.5


class RowPasses(Protocol):
    """See `verify_step.CapturedRows`."""

    def verify(self, sequence: KVSequence, ids: Sequence[int], position: int) -> Tensor:
        """Logits `[len(ids), vocab]` of tokens that stand from `position` on."""

    def greedy(self, sequence: KVSequence, ids: Sequence[int], position: int) -> list[int]:
        """The best token behind each."""


class Sources:
    """Of one model.

    Args:
        feeder: computes on the host's call.
        device_rules: of the model.
        step: draws on the device and runs ahead; without one each token is drawn by the host.
        rows: several tokens in one pass, each to the last bit as alone; without it they go through the transformer.
        draft_model: guesses by a smaller model.
    """

    def __init__(
        self,
        feeder: Feeder,
        device_rules: DeviceRules,
        *,
        step: AnswerStep | None,
        rows: RowPasses | None,
        draft_model: Drafter | None,
    ) -> None:
        self._feeder = feeder
        self._device_rules = device_rules
        self._step = step
        self._rows = rows
        row = _GPU_ROW if feeder.sequence.cache.on_gpu else _CPU_ROW
        self._drafters: dict[str, tuple[Drafter, DraftLength]] = {"ngram": (NgramDrafter(), DraftLength(row))}
        if draft_model is not None:
            self._drafters["model"] = (draft_model, DraftLength(row))

    def open(self, parts: AnswerParts, answer: Answering) -> TokenSource:
        """A source behind the last token of an answer, which is not in the cache yet."""
        drafter = self._drafter(parts.request)
        if drafter is None or parts.guidance is not None:
            return self._plain(parts, answer)
        if self._rows is not None and self._takes_the_best(parts, answer):
            return self._drafted(parts, answer, drafter, self._best_rows, lambda best: best)
        return self._drafted(parts, answer, drafter, lambda ids: self._logit_rows(ids, parts.run), answer.draw)

    def _drafter(self, request: GenerationRequest) -> tuple[Drafter, DraftLength] | None:
        kind = request.draft
        if kind == "auto":
            # Without captured rows the last bits of several tokens are others than those of single steps; and Mirostat
            # stays on the device where nothing is guessed.
            pays = self._rows is not None and not is_steered(request.sampling)
            kind = "ngram" if self._step is None or pays else "off"
        return self._drafters.get(kind)

    def _drafted(
        self,
        parts: AnswerParts,
        answer: Answering,
        drafter: tuple[Drafter, DraftLength],
        check: Callable[[list[int]], Sequence[_Row]],
        draw: Callable[[_Row], int],
    ) -> TokenSource:
        return DraftedTokens(
            plain=lambda: self._plain(parts, answer),
            check=check,
            cut=self._cut,
            draw=draw,
            context=answer.context,
            room=answer.room,
            drafter=drafter[0],
            length=drafter[1],
            count=parts.clock.drafts,
        )

    def _best_rows(self, ids: list[int]) -> list[int]:
        assert self._rows is not None
        best = self._rows.greedy(self._feeder.sequence, ids, len(self._feeder.sequence))
        self._feeder.sequence.extend(ids)
        return best

    def _logit_rows(self, ids: list[int], run: int) -> list[Tensor]:
        if self._rows is None:
            return list(self._feeder.row_logits(ids, run))
        logits = self._rows.verify(self._feeder.sequence, ids, len(self._feeder.sequence))
        self._feeder.sequence.extend(ids)
        return list(logits)

    def _takes_the_best(self, parts: AnswerParts, answer: Answering) -> bool:
        """Whether each token is the best of its logits, and nothing else is asked of them."""
        sampling, rules = parts.request.sampling, parts.rules
        bare = not (sampling.looks_back or sampling.logit_bias or sampling.banned_tokens)
        early = answer.count < parts.request.min_new_tokens
        return sampling.greedy and bare and not (rules.hold or early or parts.request.alternatives)

    def _plain(self, parts: AnswerParts, answer: Answering) -> TokenSource:
        step, sequence, request, rules = self._step, self._feeder.sequence, parts.request, parts.rules
        if step is None or not self._on_device(parts):
            return SynchronousTokens(lambda token: self._logits(token, parts.run), answer.draw)
        draws = self._device_rules.draws(parts, answer)
        if rules.hold:
            return MaskedTokens(step, sequence, answer.context, draws, lambda _: rules.mask)
        room = answer.room - len(answer.context)
        most = room if request.max_new_tokens is None else min(room, request.max_new_tokens - answer.count)
        return RunAheadTokens(step, sequence, answer.context, draws, most=most)

    def _logits(self, token: int, run: int) -> Tensor:
        """Behind one more token, float32 `[vocab]`."""
        if self._step is None:
            return self._feeder.last_logits([token], run)
        self._feeder.check(run)
        sequence = self._feeder.sequence
        logits = self._step.forward(sequence, token, len(sequence))
        sequence.extend([token])
        return logits

    def _on_device(self, parts: AnswerParts) -> bool:
        """Whether the device can draw the next tokens."""
        request = parts.request
        if request.alternatives or parts.guidance is not None or why_not_on_device(request.sampling) is not None:
            return False
        # Mirostat's state is on the device then, and what goes back or begins anew would begin without it.
        limited = request.thoughts is not None and request.thoughts.tokens is not None
        anew = request.banned or request.constraint or limited or self._drafter(request) is not None
        return not (is_steered(request.sampling) and anew)

    def _cut(self, length: int) -> None:
        """Layers with a window may have lost what the next token sees; it is computed again."""
        sequence = self._feeder.sequence
        ids = sequence.ids[:length] if sequence.cache.has_windows else []
        there = sequence.cut(length)
        if there < length:
            self._feeder.again(ids[there:])

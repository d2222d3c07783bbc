"""Where an answer's tokens come from: the device, the host, or guesses that are checked."""

from __future__ import annotations

from exlchat.engine.answering import Answering, AnswerParts
from exlchat.engine.drafting import DraftedTokens, Drafter, DraftLength
from exlchat.engine.feeding import Feeder
from exlchat.engine.ngram_drafter import NgramDrafter
from exlchat.engine.run_ahead import DecodeStep, RunAheadTokens, why_not_on_device
from exlchat.engine.token_source import SynchronousTokens, TokenSource

# What each row more of a pass costs beside the first, before one was measured. A GPU reads the weights once for all; a
# CPU computes each row.
_GPU_ROW, _CPU_ROW = 0.05, 0.5


class Sources:
    """Of one model.

    Args:
        feeder: computes on the host's call.
        step: draws on the device and runs ahead; without one each token is drawn by the host.
        draft_model: guesses by a smaller model.
    """

    def __init__(self, feeder: Feeder, step: DecodeStep | None, draft_model: Drafter | None) -> None:
        self._feeder = feeder
        self._step = step
        row = _GPU_ROW if feeder.cache.on_gpu else _CPU_ROW
        self._drafters: dict[str, tuple[Drafter, DraftLength]] = {"ngram": (NgramDrafter(), DraftLength(row))}
        if draft_model is not None:
            self._drafters["model"] = (draft_model, DraftLength(row))

    @property
    def has_draft_model(self) -> bool:
        """Whether a smaller model can guess."""
        return "model" in self._drafters

    def open(self, parts: AnswerParts, answer: Answering) -> TokenSource:
        """A source behind the last token of an answer, which is not in the cache yet."""
        drafter = self._drafters.get(parts.request.draft)
        if drafter is None or parts.guidance is not None:
            return self._plain(parts, answer)
        return DraftedTokens(
            plain=lambda: self._plain(parts, answer),
            check=lambda ids: self._feeder.row_logits(ids, parts.run),
            cut=self._cut,
            draw=answer.draw,
            context=answer.context,
            room=self._feeder.cache.max_seq_len,
            drafter=drafter[0],
            length=drafter[1],
            count=parts.clock.drafts,
        )

    def _plain(self, parts: AnswerParts, answer: Answering) -> TokenSource:
        request = parts.request
        if self._step is None or not self._on_device(parts):
            return SynchronousTokens(lambda token: self._feeder.last_logits([token], parts.run), answer.draw)
        room = self._feeder.cache.max_seq_len - len(answer.context)
        most = room if request.max_new_tokens is None else min(room, request.max_new_tokens - answer.count)
        return RunAheadTokens(
            self._step,
            self._feeder.cache,
            answer.context[-1],
            request.sampling,
            seed=parts.clock.seed,
            index=answer.count,
            most=most,
        )

    def _on_device(self, parts: AnswerParts) -> bool:
        """Whether nothing has to be said of the next token that only the host knows."""
        request, rules = parts.request, parts.rules
        host = request.alternatives or parts.guidance is not None or rules.hold
        return not host and why_not_on_device(request.sampling) is None

    def _cut(self, length: int) -> None:
        """Layers with a window may have lost what the next token sees; it is computed again."""
        ids = list(self._feeder.cache.ids[:length])
        there = self._feeder.cache.cut(length)
        if there < length:
            self._feeder.again(ids[there:])

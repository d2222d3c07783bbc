"""Guesses by a smaller model, which reads the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from exlchat.engine.kv.pool import common_length
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.token_sources import RunAheadTokens
from exlchat.llm.sampling import GREEDY

_CHUNK = 512
# Single steps of an 1B take an H200 0.44 ms each, and a pass of the transformer, kernel by kernel, some 10 ms.
_FEW = 16


class ModelDrafter:
    """A `drafting.Drafter`: the tokens that the smaller model finds likeliest.

    Args:
        runner: of the smaller model.
        sequence: follows the context.
    """

    def __init__(self, runner: Runner, sequence: KVSequence) -> None:
        self._runner = runner
        self._sequence = sequence
        self._vocab = runner.transformer.spec.vocab_size

    def guess(self, context: Sequence[int], most: int) -> list[int]:
        """See `drafting.Drafter`. Nothing where its own context is too short."""
        sequence = self._sequence
        if len(context) + most > sequence.cache.max_seq_len or max(context[-1:], default=0) >= self._vocab:
            return []
        self._catch_up(list(context))
        if self._runner.step is None:
            return self._one_by_one(context[-1], most)
        source = RunAheadTokens(self._runner.step, sequence, context, DeviceDraws(GREEDY, 0, index=0), most=most)
        guesses, token = [], context[-1]
        for _ in range(most):
            source.go_on()
            token = source.follow(token)
            guesses.append(token)
        source.close()
        return guesses

    def _one_by_one(self, token: int, most: int) -> list[int]:
        guesses = []
        for _ in range(most):
            token = int(self._runner.last_logits(self._sequence, [token]).argmax())
            guesses.append(token)
        return guesses

    def _catch_up(self, context: list[int]) -> None:
        """All of the context but its last token is in the sequence, and nothing else."""
        sequence, wanted = self._sequence, context[:-1]
        known = sequence.ids
        same = common_length(known, wanted)
        if same < len(known):
            same = sequence.cut(same)
        if len(wanted) - same > _CHUNK:
            # Another conversation, perhaps one that was read before.
            same = sequence.begin(wanted)
        if self._runner.step is not None and len(wanted) - same <= _FEW:
            for token in wanted[same:]:
                self._runner.next_logits(sequence, token)
            return
        for start in range(same, len(wanted), _CHUNK):
            self._runner.last_logits(sequence, wanted[start : start + _CHUNK])

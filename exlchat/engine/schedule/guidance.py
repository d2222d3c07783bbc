"""The other sequence of classifier-free guidance: the same answer behind a prompt to lean away from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.schedule.runner import Runner


class Guidance:
    """Of one answer.

    Args:
        sequence: its own.
        prompt: ids to lean away from.
        chunk: tokens that are computed at once.
    """

    def __init__(self, runner: Runner, sequence: KVSequence, prompt: Sequence[int], chunk: int) -> None:
        self._runner = runner
        self._sequence = sequence
        self._prompt = list(prompt)
        self._chunk = chunk
        sequence.begin(self._prompt, most=len(self._prompt) - 1)
        self._last: Tensor | None = None

    def logits(self, answer: Sequence[int]) -> Tensor:
        """float32 `[vocab]` behind its prompt and the answer so far, which may have become shorter.

        Raises:
            ModelError: memory ran out, or there is no room for so many tokens.
        """
        ids, cache = [*self._prompt, *answer], self._sequence
        same = 0
        for mine, wanted in zip(cache.ids, ids, strict=False):
            if mine != wanted:
                break
            same += 1
        if same < len(cache) or (same == len(ids) and self._last is None):
            same = cache.cut(min(same, len(ids) - 1))
        for start in range(same, len(ids), self._chunk):
            self._last = self._runner.last_logits(self._sequence, ids[start : start + self._chunk])
        assert self._last is not None
        return self._last

    def close(self) -> None:
        self._sequence.retire()

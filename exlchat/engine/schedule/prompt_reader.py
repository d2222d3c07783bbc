"""Prompts on their way into the cache, as far as it does not hold them, and sequences on their way to the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.schedule.runner import Runner
from exlchat.llm.events import PrefillProgress
from exlchat.llm.request import GenerationRequest

_REMEMBERED = 4
"""Prompts whose logits are kept, of half a megabyte each."""


class PromptReader:
    """Of one model.

    Args:
        chunk: tokens that are computed at once.
        archive: pages of earlier runs.
    """

    def __init__(self, runner: Runner, chunk: int, archive: PageArchive | None) -> None:
        self.chunk = self.slice = chunk
        """Tokens that are computed at once where nobody waits, and now."""
        self._runner = runner
        self._archive = archive
        self._last: deque[_Read] = deque(maxlen=_REMEMBERED)

    def begin(
        self, sequence: KVSequence, ids: list[int], most: int, *, owner: str, cancelled: Callable[[], bool]
    ) -> int:
        """Begins a sequence with what is known of `ids`, at most so many; how many they are."""
        sequence.cache.close_retired()
        if self._archive is not None:
            self._archive.restore(ids, most, cancelled)
        found = sequence.begin(ids, most=most, owner=owner)
        sequence.cache.note_prompt(len(ids), found)
        return found

    def read(
        self, sequence: KVSequence, request: GenerationRequest, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[PrefillProgress, Tensor | None]]:
        """Computes what the cache does not hold, chunk by chunk; float32 logits `[vocab]` come with the last chunk.

        Of the prompts that were asked last the logits are still there: a second answer to one starts at once, and from
        the same numbers to the last bit. Of any other, the last token is computed at least. The sequence may be closed
        between two chunks; what of it is known is found again.
        """
        prompt = list(request.prompt_ids)
        last = next((one for one in self._last if one.ids == prompt), None)
        most = len(prompt) - (last is None)
        cached = done = self.begin(sequence, prompt, most, owner=request.owner, cancelled=cancelled)
        yield PrefillProgress(done, len(prompt), cached), last.logits if last and done == len(prompt) else None
        while done < len(prompt) and not cancelled():
            if len(sequence) < done:
                done = sequence.begin(prompt, most=len(prompt) - 1, owner=request.owner)
                yield PrefillProgress(done, len(prompt), cached), None
                continue
            chunk = prompt[done : done + self.slice]
            logits = self._runner.last_logits(sequence, chunk)
            done += len(chunk)
            if done == len(prompt):
                self._last.append(_Read(prompt, logits))
                sequence.cache.pool.keep_warm(prompt[: request.beginning])
            yield PrefillProgress(done, len(prompt), cached), logits if done == len(prompt) else None

    def note(self, tokens: int, seconds: float) -> None:
        if self._archive is not None:
            self._archive.note_prefill(tokens, seconds)

    def keep(self, sequence: KVSequence) -> None:
        if self._archive is not None:
            self._archive.keep(sequence.filled)

    def knows(self, ids: list[int]) -> bool:
        """Whether a prompt was read just before, so that an answer to it begins at once."""
        return any(one.ids == ids for one in self._last)


@dataclass(frozen=True, slots=True)
class _Read:
    """Ids of a prompt, and float32 logits `[vocab]` behind it."""

    ids: list[int]
    logits: Tensor

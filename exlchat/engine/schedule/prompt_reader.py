"""Prompts on their way into the cache, as far as it does not hold them, and sequences on their way to the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.schedule.feeding import Feeder
from exlchat.llm.events import PrefillProgress
from exlchat.llm.request import GenerationRequest


class PromptReader:
    """Of one model.

    Args:
        feeder: into its cache.
        chunk: tokens computed between two looks at the cancel flag.
        cancelled: whether somebody wants it to end.
        archive: pages of earlier runs.
    """

    def __init__(self, feeder: Feeder, chunk: int, cancelled: Callable[[], bool], archive: PageArchive | None) -> None:
        self.chunk = chunk
        """Tokens computed between two looks at the cancel flag."""
        self._feeder = feeder
        self._cancelled = cancelled
        self._archive = archive
        self._last = _LastPrompt([], torch.empty(0))

    def begin(self, ids: list[int], most: int, owner: str) -> int:
        """Leaves the sequence so far for the longest known beginning of another, of at most so many; how long it is."""
        sequence = self._feeder.sequence
        sequence.close()
        if self._archive is not None:
            self._archive.restore(ids, most, self._cancelled)
        found = sequence.begin(ids, most=most, owner=owner)
        sequence.cache.note_prompt(len(ids), found)
        return found

    def read(self, request: GenerationRequest, run: int) -> Iterator[tuple[PrefillProgress, Tensor | None]]:
        """Computes what the cache does not hold, chunk by chunk; float32 logits `[vocab]` come with the last chunk.

        Of the prompt that was asked last the logits are still there: a second answer to it starts at once, and from the
        same numbers to the last bit. Of any other, the last token is computed at least.
        """
        self._feeder.check(run)
        prompt, last = list(request.prompt_ids), self._last
        most = len(prompt) if prompt == last.ids else len(prompt) - 1
        cached = done = self.begin(prompt, most, request.owner)
        yield PrefillProgress(done, len(prompt), cached), last.logits if done == len(prompt) else None
        while done < len(prompt) and not self._cancelled():
            chunk = prompt[done : done + self.chunk]
            logits = self._feeder.last_logits(chunk, run)
            done += len(chunk)
            if done == len(prompt):
                self._last = _LastPrompt(prompt, logits)
                self._feeder.sequence.cache.pool.keep_warm(prompt[: request.beginning])
            yield PrefillProgress(done, len(prompt), cached), logits if done == len(prompt) else None

    def note(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were computed in this time."""
        if self._archive is not None:
            self._archive.note_prefill(tokens, seconds)

    def keep(self, sequence: KVSequence, run: int) -> None:
        """The pages of a sequence, for later runs, unless a newer request has begun."""
        if self._archive is not None and self._feeder.is_newest(run):
            self._archive.keep(sequence.filled)


@dataclass(frozen=True, slots=True)
class _LastPrompt:
    """Ids of the prompt that was computed last, and float32 logits `[vocab]` behind it."""

    ids: list[int]
    logits: Tensor

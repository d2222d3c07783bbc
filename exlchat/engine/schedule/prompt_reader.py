"""Prompts on their way into the cache, as far as it does not hold them, and sequences on their way to the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.schedule.runner import Runner
from exlchat.llm.events import PrefillProgress
from exlchat.llm.request import GenerationRequest


class PromptReader:
    """Of one model.

    Args:
        chunk: tokens that are computed at once.
        archive: pages of earlier runs.
    """

    def __init__(self, runner: Runner, chunk: int, archive: PageArchive | None) -> None:
        self.chunk = chunk
        """Tokens that are computed at once."""
        self._runner = runner
        self._archive = archive
        self._last = _LastPrompt([], torch.empty(0))

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

        Of the prompt that was asked last the logits are still there: a second answer to it starts at once, and from the
        same numbers to the last bit. Of any other, the last token is computed at least.
        """
        prompt, last = list(request.prompt_ids), self._last
        most = len(prompt) if prompt == last.ids else len(prompt) - 1
        cached = done = self.begin(sequence, prompt, most, owner=request.owner, cancelled=cancelled)
        yield PrefillProgress(done, len(prompt), cached), last.logits if done == len(prompt) else None
        while done < len(prompt) and not cancelled():
            chunk = prompt[done : done + self.chunk]
            logits = self._runner.last_logits(sequence, chunk)
            done += len(chunk)
            if done == len(prompt):
                self._last = _LastPrompt(prompt, logits)
                sequence.cache.pool.keep_warm(prompt[: request.beginning])
            yield PrefillProgress(done, len(prompt), cached), logits if done == len(prompt) else None

    def note(self, tokens: int, seconds: float) -> None:
        if self._archive is not None:
            self._archive.note_prefill(tokens, seconds)

    def keep(self, sequence: KVSequence) -> None:
        if self._archive is not None:
            self._archive.keep(sequence.filled)


@dataclass(frozen=True, slots=True)
class _LastPrompt:
    """Ids of the prompt that was computed last, and float32 logits `[vocab]` behind it."""

    ids: list[int]
    logits: Tensor

"""A loaded model: what others ask of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.grammar import constraint_notice
from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import card_memory, give_memory_back, resident_memory
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, OneOfSeveral, PrefillProgress, Scored
from exlchat.llm.info import CacheReport, CardMemory, Footprint, MemoryReport, ModelInfo
from exlchat.llm.port import Capabilities, Failed, Handle, Running
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest
from exlchat.llm.thought_splitter import Channels, several_told_apart, told_apart


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loaded model is made of."""

    tokenizer: Tokenizer
    transformer: Transformer
    cache: KVCache
    scheduler: Scheduler
    archive: PageArchive | None
    draft: LocalEngine | None = None


class LocalEngine:
    """A loaded model: token ids in, token ids out. Made by `load`."""

    def __init__(self, info: ModelInfo, parts: Parts) -> None:
        self._info = info
        self._parts = parts

    @property
    def info(self) -> ModelInfo:
        """Name, sizes and special tokens."""
        return self._info

    @property
    def footprint(self) -> Footprint:
        """What it takes of the memory now, and what a decoded token reads."""
        transformer, cache = self._parts.transformer, self._parts.cache
        return Footprint(transformer.bytes, transformer.bytes_per_token, cache.bytes, cache.bytes_per_token)

    @property
    def capabilities(self) -> Capabilities:
        """All there is; guesses of a draft model where one was loaded."""
        return Capabilities(draft_model=self._parts.draft is not None, same_when_greedy=True, ranks=True)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, no BOS added. `special`: whether the text of a special token becomes that token."""
        return self._parts.tokenizer.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of `ids`. `special`: with that of all special tokens."""
        return self._parts.tokenizer.decode(ids, special=special)

    def spell(self, ids: Sequence[int]) -> list[bytes]:
        """What each id adds to a text; of a special token its name. The first call may take a quarter of a second."""
        return self._parts.tokenizer.spell(ids)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits of every position at once, without a cache.

        Args:
            ids: at least one id below the vocabulary's size.

        Returns:
            float32 `[len(ids), vocab]` on the model's device.

        Raises:
            RequestError: there are no ids, or one the model does not have.
        """
        if not ids or min(ids) < 0 or max(ids) >= self._info.vocab_size:
            raise RequestError(f"logits need at least one id, all of them from 0 to {self._info.vocab_size - 1}")
        transformer = self._parts.transformer
        return transformer.forward(torch.tensor(ids, device=transformer.device), last_only=False)

    def submit(
        self, request: GenerationRequest | ScoreRequest, sink: Callable[[Event | Scored | Failed], None]
    ) -> Handle:
        """Begins an answer or a scoring, beside others that run. See `Scheduler.submit`."""
        if isinstance(request, ScoreRequest):
            return self._parts.scheduler.submit_score(request, sink)
        self.capabilities.check(request)
        channels = None if request.thoughts is None else Channels(request.thoughts)

        def tell(event: Event | Failed) -> None:
            if channels is not None and isinstance(event, Failed):
                for delta in channels.rest():
                    sink(delta)
            if channels is None or isinstance(event, PrefillProgress | Failed):
                sink(event)
                return
            for told in channels.told(event):
                sink(told)

        return self._parts.scheduler.submit(request, tell)

    def generate(self, request: GenerationRequest) -> Running[Event]:
        """Events of one answer, `Finished` last. See `Scheduler.generate`."""
        self.capabilities.check(request)
        running = self._parts.scheduler.generate(request)
        return Running(told_apart(running, request.thoughts), running.cancel)

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """Events of 1 to 8 answers to one prompt, which is read once. See `Scheduler.generate_several`."""
        self.capabilities.check(request)
        running = self._parts.scheduler.generate_several(request, seeds)
        return Running(several_told_apart(running, request.thoughts, len(seeds)), running.cancel)

    def check(self, request: GenerationRequest) -> None:
        """Whether answers can be made so with this model, whatever the prompt, which may be empty. From any thread.

        Raises:
            RequestError: in one line: a token that it does not have, or a constraint that nothing can be held to.
        """
        self.capabilities.check(request)
        self._parts.scheduler.check(request.sampling, request.constraint)

    def constraint_notice(self, constraint: Constraint) -> str | None:
        """In a line what a constraint asks for that answers are not held to, if anything."""
        return constraint_notice(constraint)

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """How likely the tokens of a sequence are, `Scored` last. See `Scheduler.score`."""
        return self._parts.scheduler.score(request)

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a prompt would not have to be computed now. The disk is not asked."""
        with self._parts.scheduler.between_steps():
            return self._parts.cache.known(ids)

    def cache_report(self) -> CacheReport:
        """The pages of the cache and what they have saved."""
        with self._parts.scheduler.between_steps():
            report, archive = self._parts.cache.report(), self._parts.archive
        disk = None if archive is None else archive.report
        return dataclasses.replace(report, disk=disk, pauses=self._parts.scheduler.pauses)

    def memory_report(self) -> MemoryReport:
        """What is in use now of the card's memory and of the machine's."""
        held = self.footprint
        split = self._parts.transformer.split
        layers = [(device, len(split.layers(card))) for card, device in enumerate(split.devices)]
        cards = tuple(CardMemory(str(card), *card_memory(card), count) for card, count in layers if card.type == "cuda")
        hosted = sum(host.bytes for host in self._parts.transformer.hosts)
        return MemoryReport(
            held.weights, held.cache, resident_memory(), cards, hosted, split.hosted, together=split.together
        )

    def close(self) -> None:
        """Gives pages on their way to the disk two seconds to get there. The engine stays usable."""
        if self._parts.archive is not None:
            self._parts.archive.close()
        if self._parts.draft is not None:
            self._parts.draft.close()

    def unload(self) -> None:
        """Closes, and gives all memory back, a GPU's to the driver. Only `info` may be asked afterwards."""
        self._parts.scheduler.close()
        self.close()
        if self._parts.draft is not None:
            self._parts.draft.unload()
        del self._parts
        give_memory_back()

"""Up to eight tokens in one pass over the weights, captured as CUDA graphs: of one sequence, or of a sequence each.

What each token comes to, and what is cached of it, equals to the last bit what single steps (`decode_step`) give. So
drafted tokens can be checked together, and what is written then is what would have been written without drafts; and
several answers can be made together, each as it would be alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.decode.decode_step import NO_MEMORY, captured, launch_all, launches_dependently, splits_of
from exlchat.engine.decode.fit import why_not, why_not_fused
from exlchat.engine.decode.kernels import StepKernels
from exlchat.engine.decode.plan import DecodePlan, Tables
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling import NotNumbersError
from exlchat.ext.products import MAX_ROWS
from exlchat.llm.info import ModelError

_NO_TOKEN = -1


def why_no_rows(transformer: Transformer, cache: KVCache) -> str | None:
    """Why a model has no `CapturedRows`, or `None` if it has.

    Those that take the other chain (`settled_chain`) have none; their drafts go through `Transformer.forward`, whose
    last bits are others.
    """
    return why_not(transformer, cache) or why_not_fused(transformer)


class CapturedRows:
    """Feeds one to eight tokens at once. A number of tokens is captured when it is first fed.

    Nothing else may launch work on the same cache between a call and the end of its work on the device, unless on the
    same stream.

    Args:
        transformer, cache: of one model for which `why_no_rows` gives `None`.
        kernels: on the model's device.
        most: how many tokens at once at most.
        dependent: whether kernels may start before their predecessors end; as the card can unless given.

    Raises:
        ModelError: no memory for it.
        ValueError: `most` is not from 1 to 8.
    """

    def __init__(
        self,
        transformer: Transformer,
        cache: KVCache,
        kernels: StepKernels,
        *,
        most: int = MAX_ROWS,
        dependent: bool | None = None,
    ) -> None:
        if not 1 <= most <= MAX_ROWS:
            raise ValueError(f"most is {most}; the kernels take 1 to {MAX_ROWS} rows")
        device = transformer.device
        self.most = most
        """How many tokens at once at most."""
        self._cache = cache
        self.device = device
        """Where the passes run."""
        self.dependent = launches_dependently(device) if dependent is None else dependent
        """Whether kernels may start before their predecessors end."""
        try:
            splits = splits_of(transformer.spec, device)
            self._chain = DecodePlan(transformer, cache, kernels, splits=splits, rows=most)
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        self.plan = self._chain
        self._passes: dict[tuple[int, Tables], _Pass] = {}

    @torch.inference_mode()
    def verify(self, sequence: KVSequence, ids: Sequence[int], position: int) -> Tensor:
        """Feeds tokens and gives the logits behind each.

        Their keys and values are stored; the sequence is not told. The caller does so (`KVSequence.extend`) with those
        that it keeps: what is behind them counts for nothing and is written over.

        Args:
            ids: the last token that was accepted, which is not cached yet, and drafted ones behind it.
            position: of the first of them, as many as are cached.

        Returns:
            float32 `[len(ids), vocab]` on the device, valid until the next call. The work may still be under way.

        Raises:
            ModelError: no memory for so many tokens.
            ValueError: no ids or more than `most`.
        """
        self._follow_on(sequence, ids, position)
        return self._chain.logits[: len(ids)]

    @torch.inference_mode()
    def feed_each(self, ids: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        """Feeds a token to each of several sequences, and gives the logits behind each.

        Keys and values are stored; the sequences are not told, the caller does so (`KVSequence.extend`).

        Args:
            ids: one for each sequence.

        Returns, raises: as `verify`; also `PoolFullError`.
        """
        self._check_count(len(ids))
        for sequence in sequences:
            sequence.reserve(len(sequence) + 1)
        self.show(sequences)
        self._launch(ids, [len(sequence) for sequence in sequences], tables="own")
        return self._chain.logits[: len(ids)]

    def show(self, sequences: Sequence[KVSequence]) -> None:
        """The sequences that the next passes take a token of each, in order."""
        self._chain.tables.show(self._cache.tables, [sequence.row for sequence in sequences])

    @torch.inference_mode()
    def greedy(self, sequence: KVSequence, ids: Sequence[int], position: int) -> list[int]:
        """As `verify`, but waits and gives the best token behind each; of equal ones the lower id.

        Raises:
            NotNumbersError: logits are no numbers.
        """
        found = self._follow_on(sequence, ids, position)
        found.done.synchronize()
        best: list[int] = found.best.tolist()
        if _NO_TOKEN in best:
            raise NotNumbersError
        return best

    def _check_count(self, rows: int) -> None:
        if not 1 <= rows <= self.most:
            raise ValueError(f"{rows} tokens at once; there can be 1 to {self.most}")

    def _follow_on(self, sequence: KVSequence, ids: Sequence[int], position: int) -> _Pass:
        """Tokens of a sequence, one behind the other."""
        self._check_count(len(ids))
        sequence.reserve(position + len(ids))
        self.show([sequence])
        return self._launch(ids, range(position, position + len(ids)), tables="shared")

    def _launch(self, ids: Sequence[int], positions: Sequence[int], *, tables: Tables) -> _Pass:
        kind: tuple[int, Tables] = len(ids), tables
        known = self._passes.get(kind)
        one = known or _Pass(self._chain, len(ids), tables, dependent=self.dependent)
        one.done.synchronize()  # what is fed may still be read
        one.token.copy_(torch.tensor(ids))
        one.position.copy_(torch.tensor(positions))
        if known is None:
            # CUDA loads kernels when they are first launched, which must not fall into a capture.
            one.work()
            one.capture()
            self._passes[kind] = one
        else:
            one.replay()
        return one


class _Pass:
    """All work for so many tokens, and what goes between it and the host, in pinned memory."""

    def __init__(self, chain: DecodePlan, rows: int, tables: Tables, *, dependent: bool) -> None:
        self.token = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self.position = torch.zeros(rows, dtype=torch.int32, pin_memory=True)
        self.best = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._chain, self._rows, self._dependent = chain, rows, dependent
        self._jobs: list[Launch] = chain.jobs(rows, tables)
        self._graph: torch.cuda.CUDAGraph | None = None

    def work(self) -> None:
        """Launches everything, one by one."""
        self._enqueue(dependent=False)
        self.done.record()

    def capture(self) -> None:
        """From now on `replay` can be called. Launches nothing."""
        self._graph = captured(self._chain.token.device, lambda: self._enqueue(dependent=self._dependent))

    def replay(self) -> None:
        """Launches everything at once."""
        assert self._graph is not None
        self._graph.replay()
        self.done.record()

    def _enqueue(self, *, dependent: bool) -> None:
        self._chain.token[: self._rows].copy_(self.token, non_blocking=True)
        self._chain.position[: self._rows].copy_(self.position, non_blocking=True)
        launch_all(self._jobs, dependent=dependent)
        # Of equal values torch gives the first one's place, and NaN where there is one.
        values, places = self._chain.logits[: self._rows].max(dim=1)
        self.best.copy_(places.masked_fill(~values.isfinite(), _NO_TOKEN), non_blocking=True)

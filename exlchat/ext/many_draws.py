"""Draws of many rows at once: what `sampling.py` and `chain.py` launch for one row, launched once for all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.chain import ChainState, adjust_structure, chain_structure
from exlchat.ext.job import Job, check, check_on_gpu
from exlchat.ext.library import Library
from exlchat.ext.sampling import SamplerState, check_logits, sample_structure

RowKind = Literal["plain", "adjusted", "chain", "none"]
_KINDS: dict[RowKind, int] = {
    "plain": c.ROW_PLAIN,
    "adjusted": c.ROW_ADJUSTED,
    "chain": c.ROW_CHAIN,
    "none": c.ROW_NONE,
}


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """One of them. Arguments as of `SamplerKernels.sample` and `ChainKernels.draw_adjusted`.

    Args:
        chain: where it was ever drawn from adjusted logits.
    """

    logits: Tensor
    sampler: SamplerState
    token: Tensor
    position: Tensor
    chain: ChainState | None


class DrawTable:
    """What the launches know of so many rows. Each row is always the same tensors."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.draws = torch.zeros(rows, ctypes.sizeof(c.CRowDraw), dtype=torch.uint8, device=device)
        self.kinds = torch.zeros(rows, dtype=torch.int32, device=device)
        self._kept: dict[int, tuple[Tensor, ...]] = {}
        self._with_chain: set[int] = set()

    def show(self, rows: Sequence[DrawnRow], kinds: Sequence[RowKind]) -> None:
        """How the first rows are drawn from now on. Enqueued."""
        for number, row in enumerate(rows):
            if number not in self._kept or (row.chain is not None and number not in self._with_chain):
                self._put(number, row)
        self.kinds[: len(kinds)].copy_(sent([_KINDS[kind] for kind in kinds], self.kinds), non_blocking=True)

    def _put(self, number: int, row: DrawnRow) -> None:
        check_logits(row.logits)
        check("token", row.token, torch.int64, (1,))
        check("position", row.position, torch.int32, (1,))
        check_on_gpu(logits=row.logits, token=row.token, position=row.position, draws=self.draws)
        structure = c.CRowDraw()
        ends = row.token, row.position
        structure.plain, kept = sample_structure(row.logits, row.sampler, *ends, context=None, numbers=None)
        if row.chain is not None:
            structure.adjust, adjusted = adjust_structure(row.logits, row.chain, row.sampler, row.position)
            structure.chain, drawn = chain_structure(row.chain, row.sampler, *ends)
            kept = (*kept, *adjusted, *drawn)
            self._with_chain.add(number)
        self._kept[number] = kept
        self.draws[number].copy_(torch.frombuffer(bytearray(structure), dtype=torch.uint8))


def sent(values: Sequence[int], like: Tensor) -> Tensor:
    """Of its dtype, in memory from which a copy to its device waits for nothing that was launched before."""
    return torch.tensor(values, dtype=like.dtype, pin_memory=like.device.type == "cuda")


class ManyDrawKernels:
    def __init__(self, library: Library) -> None:
        self._adjust_rows = library.function("exl_adjust_rows")
        self._sample_rows = library.function("exl_sample_rows")
        self._chain_rows = library.function("exl_chain_rows")

    def draw_rows(
        self, table: DrawTable, rows: Sequence[DrawnRow], kinds: Sequence[RowKind], *, chains: bool = True
    ) -> list[Job]:
        """Draws a token of each row by its kind, and ends its step; `none`: leaves it alone.

        A chain comes to what `draw_adjusted` gives but for near-ties: its sums of doubles are of one block.

        Args:
            table: of as many rows or more; of these from the first row on.
            rows: of one vocabulary.
            chains: whether those are drawn, or only adjusted, for `draw_adjusted`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or more rows than the table has.
        """
        if not 1 <= len(rows) == len(kinds) <= min(len(table.kinds), c.WIDE_ROWS):
            raise ValueError(f"{len(rows)} rows of {len(kinds)} kinds; the table has {len(table.kinds)}")
        table.show(rows, kinds)
        structure = c.CDrawRows(table.draws.data_ptr(), table.kinds.data_ptr(), len(rows), len(rows[0].logits), 0)
        wanted = set(kinds)
        launches: list[tuple[Callable[..., None], set[RowKind]]] = [
            (self._adjust_rows, {"adjusted", "chain"}),
            (self._sample_rows, {"plain", "adjusted"}),
            (self._chain_rows, {"chain"} if chains else set()),
        ]
        tensors = (table.draws, table.kinds)
        return [Job(function, structure, tensors) for function, of_kinds in launches if wanted & of_kinds]

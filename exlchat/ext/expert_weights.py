"""The weights of all experts of a layer, as products of chosen experts read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import check, check_together
from exlchat.ext.layout import NO_FEATURE, PIECE_ROWS, PackedMatrix, unsigned
from exlchat.ext.products import check_matrices

_ALIGNMENT = 16
_FARTHEST = 1 << 36
"""Bytes from the first expert to any other, which 32 bits count by 16."""
_BESIDE_X = 62 * 1024
"""Bytes of a block's memory that a product has beside x where it is worth its while: rings of three slots, and sums."""
_SUMMED = (1, 2, 4, 8)
"""Experts of a token whose sum one product adds up: each has as many of a block's eight warps."""


class ExpertMatrices:
    """Quantized matrices of experts that are alike: one of each (down), or two (gate and up) that read the same input.

    Experts share features, outputs, stored rows and sections, and so one plan; each has an input order of its own.

    Args:
        experts: of each expert one or two matrices.
        into: the matrices that read what a gated product of these leaves: it goes to their stored order at once.
            Without it, and for those that have not `same_places`, outputs keep the order of the columns.

    Raises:
        ValueError: experts are not alike, or `into` does not fit.
    """

    def __init__(self, experts: Sequence[Sequence[PackedMatrix]], *, into: ExpertMatrices | None = None) -> None:
        self.experts = tuple(tuple(matrices) for matrices in experts)
        _check_alike(self.experts)
        if into is not None:
            _check_into(self, into)
        self.into = into
        kept = [tensor for matrices in self.experts for matrix in matrices for tensor in _tensors(matrix)]
        rows = (c.CExpert * len(self.experts))()
        for number, matrices in enumerate(self.experts):
            scatter = None if into is None else into.experts[number][0].scatter
            if scatter is not None:
                kept.append(scatter)
            rows[number] = _c_expert(matrices, scatter)
        for tensor in kept:
            if tensor.data_ptr() % _ALIGNMENT:
                raise ValueError(f"a tensor of an expert does not begin at whole {_ALIGNMENT} bytes")
        check_together(*kept)
        self.table = torch.frombuffer(bytearray(rows), dtype=torch.int64).to(self.first[0].words.device)
        """int64 `[experts * 8]`: `ExlExpert` of each. It points into the matrices' tensors."""
        firsts = ([getattr(row[0], name) for row in self.experts] for name in ("words", "scales"))
        (self.first_words, words), (self.first_scales, scales) = map(_extent, firsts)
        """Where in memory the first codes and the first scales of all begin."""
        self._extent = max(words, scales)
        self.tensors = (self.table, *kept)
        """All that a launch reads."""

    @property
    def first(self) -> tuple[PackedMatrix, ...]:
        """The matrices of one expert, whose shape and sections all have."""
        return self.experts[0]

    @property
    def features(self) -> int:
        return self.first[0].features

    @property
    def stored(self) -> int:
        """Rows of the input in stored order."""
        return self.first[0].stored

    @property
    def outputs(self) -> int:
        return self.first[0].outputs

    @property
    def bytes(self) -> int:
        """What a product reads of one expert."""
        return sum(matrix.bytes for matrix in self.first)

    def why_not_summed(self, slots: int) -> str | None:
        """Why no product adds up what so many experts of a token give, or `None` where one does."""
        if slots not in _SUMMED:
            return f"{slots} experts of a token are chosen"
        if any(len(row) > 1 or row[0].bias is not None for row in self.experts):
            return "they have a bias, or two matrices"
        if self.stored % PIECE_ROWS or not self.same_places:
            return f"their {self.stored} rows are not whole pieces of {PIECE_ROWS}, or empty in other places"
        words = self.first[0].words
        if words.device.type == "cuda":
            room = torch.cuda.get_device_properties(words.device).shared_memory_per_multiprocessor
            if slots * self.stored * 17 // 8 + _BESIDE_X > room:  # halves, and a float for 32 of them
                return f"x of {slots} experts, each {self.stored} wide, takes too much of {room} bytes of shared memory"
        return "they lie far apart in memory" if self._extent > _FARTHEST else None

    @property
    def same_places(self) -> bool:
        """Whether the same stored rows of all experts take no feature.

        Only then may one buffer hold inputs of any of them in stored order: what another one has left in a place that
        this one takes for empty would be multiplied otherwise. Waits for the GPU.
        """
        if self.stored == self.features:
            return True
        empty = torch.stack([unsigned(matrices[0].gather) == NO_FEATURE for matrices in self.experts])
        return bool((empty == empty[0]).all())


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """Weights of experts that are not quantized, in the order of features and columns.

    Args:
        weights: one (down) or two (gate and up) float16 `[experts, outputs, inputs]`; experts may stand anywhere, so
            that gate and up may be halves of one tensor.
        biases: float16 `[experts, outputs]` of each, or none of them has one.

    Raises:
        ValueError: tensors that the kernel does not read.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.weights) <= c.EXPERT_MATRICES:
            raise ValueError(f"{len(self.weights)} matrices of an expert; there can be 1 or {c.EXPERT_MATRICES}")
        if self.biases and len(self.biases) != len(self.weights):
            raise ValueError(f"{len(self.biases)} biases for {len(self.weights)} matrices")
        for bias in self.biases:
            check("bias", bias, torch.float16, tuple(self.weights[0].shape[:2]))
        first = self.weights[0]
        if first.ndim != 3 or first.shape[2] % 8 or first.shape[1] % 2 or not 8 <= first.shape[2] <= c.MAX_DENSE_INPUTS:
            raise ValueError(
                f"weights are {tuple(first.shape)}; they must be [experts, even outputs, inputs], inputs a multiple of "
                f"8 up to {c.MAX_DENSE_INPUTS}"
            )
        for weight in self.weights:
            if weight.dtype != torch.float16 or weight.shape != first.shape or weight.stride() != first.stride():
                raise ValueError(
                    f"weights are {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()}; they must be "
                    f"{torch.float16} {tuple(first.shape)} with strides {first.stride()}"
                )
        row = (self.inputs, 1)
        if first.stride()[1:] != row or self.stride % 8 or self.stride < self.outputs * self.inputs:
            raise ValueError(f"weights have strides {first.stride()}; those of an expert must be contiguous")
        if any(weight.data_ptr() % _ALIGNMENT for weight in self.weights):
            raise ValueError(f"weights of experts do not begin at whole {_ALIGNMENT} bytes")

    @property
    def count(self) -> int:
        return self.weights[0].shape[0]

    @property
    def inputs(self) -> int:
        return self.weights[0].shape[2]

    @property
    def outputs(self) -> int:
        return self.weights[0].shape[1]

    @property
    def stride(self) -> int:
        """Elements from an expert to the next one."""
        return self.weights[0].stride(0)

    @property
    def bytes(self) -> int:
        """What a product reads of one expert."""
        return 2 * self.inputs * self.outputs * len(self.weights)


def _extent(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Where in memory the first one begins, and how many bytes behind that the last one ends."""
    first = min(tensor.data_ptr() for tensor in tensors)
    return first, max(tensor.data_ptr() + tensor.nbytes for tensor in tensors) - first


def _tensors(matrix: PackedMatrix) -> list[Tensor]:
    return [matrix.words, matrix.scales, matrix.gather] + ([] if matrix.bias is None else [matrix.bias])


def _c_expert(matrices: Sequence[PackedMatrix], scatter: Tensor | None) -> c.CExpert:
    row = c.CExpert(gather=matrices[0].gather.data_ptr(), scatter=None if scatter is None else scatter.data_ptr())
    for index, matrix in enumerate(matrices):
        row.words[index], row.scales[index] = matrix.words.data_ptr(), matrix.scales.data_ptr()
        row.bias[index] = None if matrix.bias is None else matrix.bias.data_ptr()
    return row


def _check_alike(experts: tuple[tuple[PackedMatrix, ...], ...]) -> None:
    if not 1 <= len(experts) <= c.MAX_EXPERTS:
        raise ValueError(f"{len(experts)} experts; there can be 1 to {c.MAX_EXPERTS}")
    for number, matrices in enumerate(experts):
        if not 1 <= len(matrices) <= c.EXPERT_MATRICES:
            raise ValueError(f"expert {number} has {len(matrices)} matrices; there can be 1 or {c.EXPERT_MATRICES}")
        check_matrices(matrices)
        if matrices[0].outputs != matrices[-1].outputs:
            raise ValueError(f"expert {number} has {matrices[0].outputs} and {matrices[-1].outputs} outputs")
        if _structure(matrices) != _structure(experts[0]):
            raise ValueError(f"expert {number} is not shaped or quantized as expert 0 is; one plan must do for all")
    orders = [torch.stack([matrices[index].gather for matrices in experts]) for index in range(len(experts[0]))]
    if not torch.equal(orders[0], orders[-1]):
        raise ValueError("the two matrices of an expert read their input in different orders")


def _structure(matrices: Sequence[PackedMatrix]) -> list[object]:
    return [(matrix.features, matrix.stored, matrix.outputs, matrix.sections) for matrix in matrices]


def _check_into(experts: ExpertMatrices, into: ExpertMatrices) -> None:
    if len(into.experts) != len(experts.experts) or into.features != experts.outputs:
        raise ValueError(
            f"{len(experts.experts)} experts of {experts.outputs} outputs do not go into {len(into.experts)} of "
            f"{into.features} inputs"
        )
    if not into.same_places:
        raise ValueError("outputs cannot go to the stored order of experts whose empty places differ")

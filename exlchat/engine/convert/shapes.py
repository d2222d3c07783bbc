"""What a conversion will write, by the headers of its source alone: no weight is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.convert.matrices import Matrix, matrices_of
from exlchat.engine.convert.observing import ObservingLoader, check_form, has_head
from exlchat.engine.convert.rounding import Layout
from exlchat.engine.formats.inventory import QUANTIZED
from exlchat.engine.layers.assembly import load_ends, load_layer
from exlchat.engine.layers.linear import Linear
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

_NOWHERE = torch.device("meta")
# In a file's header, of each tensor beside its name: dtype, shape, where it begins and ends.
_HEADER_BYTES = 96
_BYTES = {"F16": 2, "I16": 2, "I32": 4}


@dataclass(frozen=True, slots=True)
class Written:
    """Headers of a file that is still to be written: sizes and dtypes by name."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]

    @property
    def names(self) -> Set[str]:
        return self.tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][0]

    def dtype(self, name: str) -> str:
        return self.tensors[name][1]

    @property
    def bytes(self) -> int:
        """Of the tensors, without the file's header."""
        return sum(math.prod(shape) * _BYTES[dtype] for shape, dtype in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Shapes:
    """A source in sizes.

    Args:
        matrices: what becomes EXL2, by its name in the new file; without data.
        staying: the tensors that stay floats, and their shapes.
    """

    matrices: Mapping[str, Matrix]
    staying: Mapping[str, tuple[int, ...]]

    @property
    def floats(self) -> int:
        """Numbers that stay floats, biases of matrices too."""
        biases = sum(len(matrix.bias) for matrix in self.matrices.values() if matrix.bias is not None)
        return biases + sum(math.prod(shape) for shape in self.staying.values())

    @property
    def header_bytes(self) -> int:
        """Of the new file's header, at most."""
        names = [*self.staying, *(f"{name}.{part}" for name in self.matrices for part in _PARTS)]
        return sum(len(name) + _HEADER_BYTES for name in names)

    def written(self, layouts: Mapping[str, Layout]) -> Written:
        """The file in which each matrix has this layout."""
        found: dict[str, tuple[tuple[int, ...], str]] = {name: (shape, "F16") for name, shape in self.staying.items()}
        for name, matrix in self.matrices.items():
            found.update({f"{name}.{part}": entry for part, entry in _headers(matrix, layouts[name]).items()})
        return Written(found)


_PARTS = ("q_weight", "q_invperm", "q_scale", "q_scale_max", "q_groups", "bias")


def _headers(matrix: Matrix, layout: Layout) -> dict[str, tuple[tuple[int, ...], str]]:
    groups = len(layout)
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "q_weight": ((sum(bits * rows for bits, rows in layout) // 32, matrix.outputs), "I32"),
        "q_invperm": ((matrix.features,), "I32"),
        "q_scale": ((groups, matrix.outputs // 8), "I32"),
        "q_scale_max": ((groups,), "F16"),
        "q_groups": ((2 * groups,), "I16"),
    }
    if matrix.bias is not None:
        found["bias"] = ((len(matrix.bias),), "F16")
    return found


def read_shapes(checkpoint: Checkpoint, spec: ModelSpec) -> Shapes:
    """Of a source.

    Raises:
        ModelError: EXL2 has no form for it, or a layer is missing.
    """
    check_form(checkpoint, spec)
    loader = check_headers(checkpoint, spec)
    matrices = matrices_of(loader.held, spec, checkpoint)
    names = staying(checkpoint, {matrix.key for matrix in matrices})
    for name in names:
        key, _, kind = name.rpartition(".")
        if kind in QUANTIZED:
            shown = checkpoint.name_in_file(name)
            raise ModelError(
                f"{checkpoint.file_of(name)}: {shown} is of a quantized layer that EXL2 cannot hold "
                f"({_sizes(loader, key)})"
            )
    return Shapes({matrix.name: matrix for matrix in matrices}, {name: checkpoint.shape(name) for name in names})


def check_headers(checkpoint: Checkpoint, spec: ModelSpec) -> ObservingLoader:
    """Sees that all norms, biases and matrices are there, of the sizes that `config.json` makes them.

    Returns:
        what holds its layers, without data.

    Raises:
        ModelError: one is not.
    """
    loader = _ShapeLoader(checkpoint)
    load_ends(spec, loader, has_head(checkpoint))
    for index in range(spec.num_layers):
        load_layer(spec, loader, index)
    return loader


def staying(checkpoint: Checkpoint, taken: Set[str]) -> Sequence[str]:
    """The tensors that are of none of these layers."""
    return sorted(name for name in checkpoint.names if name.rpartition(".")[0] not in taken)


def _sizes(loader: ObservingLoader, key: str) -> str:
    layer = loader.held.get(key)
    return "it is none of the decoder's" if layer is None else f"{layer.weight.shape[1]} x {layer.weight.shape[0]}"


class _ShapeLoader(ObservingLoader):
    """Takes the sizes that `config.json` gives, and layers' names from the headers."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, _NOWHERE)

    def float_linear(
        self,
        key: str,
        features: int,
        outputs: int,
        *,
        bias: bool,
        transposed: bool = False,
    ) -> Linear:
        if not self.has(key):
            raise ModelError(f"{self._checkpoint.missing(f'{key}.weight')}; download the model again")
        if f"{key}.weight" in self._checkpoint.names:
            self.tensor(f"{key}.weight", (features, outputs) if transposed else (outputs, features))
        elif f"{key}.q_weight" in self._checkpoint.names:
            self.tensor(f"{key}.q_invperm", (features,))
            words = self._checkpoint.shape(f"{key}.q_weight")
            self.tensor(f"{key}.q_weight", (words[0], -(-outputs // 32) * 32))
        return Linear(_empty(outputs, features), self._bias(key, outputs, declared=bias))

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> Tensor:
        if name not in self._checkpoint.names or self._checkpoint.shape(name) not in shapes:
            # Which says what is wrong with it.
            return super().tensor(name, *shapes)
        return _empty(*shapes[0])

    def check(self, key: str, weight: Tensor) -> None:
        """There is nothing to see in it."""


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, device=_NOWHERE)

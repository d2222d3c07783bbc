"""A model of which one layer at a time is in memory, and whose matrices note what they read and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.layers.assembly import load_ends, load_layer
from exlchat.engine.layers.linear import Linear
from exlchat.engine.layers.operations import TorchOperations, activate
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.engine.model.spec import Activation, ModelSpec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

HEAD = "lm_head"
GREATEST = 65504.0
"""Of float16, which EXL2 files are in."""


@dataclass(slots=True)
class Sum:
    """Args: total: of squares. count: of tokens."""

    total: Tensor
    count: int = 0

    @property
    def mean(self) -> Tensor:
        return self.total / max(self.count, 1)


@dataclass(slots=True)
class Notes:
    """What the matrices of a layer note down while it computes.

    Args:
        moments: whether they note what they read.
        inputs: of each distinct input the sum of `x x^T`, float32 `[K, K]`, by the first matrix that reads it.
        input_of: of each matrix that first one.
        costs: of each matrix the sum of squared gradients of its outputs, float32 `[N]`.
    """

    moments: bool = True
    inputs: dict[str, Sum] = field(default_factory=dict)
    input_of: dict[str, str] = field(default_factory=dict)
    costs: dict[str, Sum] = field(default_factory=dict)
    last: tuple[Tensor, str] | None = None

    def read(self, key: str, x: Tensor) -> None:
        """`[tokens, K]`. Matrices that are handed one tensor read the same."""
        if not self.moments:
            return
        if self.last is not None and self.last[0] is x:
            self.input_of[key] = self.last[1]
            return
        self.last = x, key
        self.input_of[key] = key
        known = self.inputs.setdefault(key, Sum(torch.zeros(x.shape[1], x.shape[1], device=x.device)))
        known.total.addmm_(x.T, x)
        known.count += len(x)

    def cost(self, key: str, gradient: Tensor) -> None:
        """`[tokens, N]`."""
        known = self.costs.setdefault(key, Sum(torch.zeros(gradient.shape[1], device=gradient.device)))
        known.total += gradient.square().sum(0)
        known.count += len(gradient)


@dataclass(slots=True)
class Notebook:
    """What a model's layers note in, while there is something to note."""

    notes: Notes | None = None


@dataclass(frozen=True, slots=True)
class Observed(Linear):
    """A float layer under its name, which tells what goes through it."""

    key: str = ""
    # Not the loader, which holds the layers: memory in a circle waits for the collector, and an 8B's head is 2 GiB.
    notebook: Notebook = field(default_factory=Notebook)

    def __call__(self, x: Tensor) -> Tensor:
        notes = self.notebook.notes
        if notes is not None and not torch.is_grad_enabled():
            notes.read(self.key, x)
        y = functional.linear(x, self.weight, self.bias)
        if notes is not None and y.requires_grad:
            y.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: notes.cost(self.key, gradient)
            )
        return y


class ObservingLoader(LayerLoader):
    """Loads layers as floats that are observed.

    Args:
        checkpoint, device: as of `LayerLoader`.
        greatest: what no weight may be beyond.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, *, greatest: float = math.inf) -> None:
        super().__init__(checkpoint, device, torch.float32)
        self._greatest = greatest
        self.notebook = Notebook()
        self.held: dict[str, Observed] = {}
        """The layers that were loaded last."""

    def linear(
        self, key: str, features: int, outputs: int, *, bias: bool, transposed: bool = False
    ) -> Linear | QuantizedLinear:
        loaded = self.float_linear(key, features, outputs, bias=bias, transposed=transposed)
        return self._observe(key, loaded)

    def float_head(self, head: Linear) -> Linear | QuantizedLinear:
        return head if isinstance(head, Observed) else self._observe(HEAD, head)

    def _observe(self, key: str, layer: Linear) -> Observed:
        self.check(key, layer.weight)
        # Not joined with others, as what is mapped from a file is not.
        observed = Observed(layer.weight, layer.bias, mapped=True, key=key, notebook=self.notebook)
        self.held[key] = observed
        return observed

    def check(self, key: str, weight: Tensor) -> None:
        """Raises `ModelError` for weights that are no numbers, or too great ones."""
        # No copy of it, nor a count of 8 bytes a weight.
        least, most = weight.aminmax()
        greatest = max(float(-least), float(most))
        if not math.isfinite(greatest):
            wrong = int((~weight.isfinite()).sum())
            raise ModelError(f"{key}: {wrong} of its weights are no numbers; get the model again")
        if greatest > self._greatest:
            raise ModelError(f"{key}: holds {greatest:g}; float16, which EXL2 files are in, ends at {GREATEST:.0f}")


class OneAtATime(Sequence[DecoderLayer]):
    """A model's layers, of which the one that was asked for last is in memory."""

    def __init__(self, spec: ModelSpec, loader: ObservingLoader) -> None:
        self._spec = spec
        self._loader = loader
        self._held: tuple[int, DecoderLayer] | None = None

    def __len__(self) -> int:
        return self._spec.num_layers

    @overload
    def __getitem__(self, index: int) -> DecoderLayer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[DecoderLayer]: ...

    def __getitem__(self, index: int | slice) -> DecoderLayer | Sequence[DecoderLayer]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        if self._held is None or self._held[0] != index:
            head = self._loader.held.get(HEAD)
            # Dropped before the next is read.
            self._held = None
            self._loader.held.clear()
            if head is not None:
                self._loader.held[HEAD] = head
            self._held = index, load_layer(self._spec, self._loader, index)
        return self._held[1]


class DifferentiableOperations(TorchOperations):
    """The same results in tensors of their own, as gradients want them."""

    def gate(self, x: Tensor, activation: Activation) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return activate(first, activation) * second


def has_head(checkpoint: Checkpoint) -> bool:
    """Whether the file holds a head of its own."""
    return any(name.startswith(f"{HEAD}.") for name in checkpoint.names)


def check_form(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Raises `ModelError` for a model that EXL2 has no form for."""
    if spec.experts is not None and spec.experts.stacked:
        raise ModelError(
            f"{checkpoint.path}: all experts of a layer stand in one tensor ({spec.architecture}), which EXL2 has no "
            "form for; run it as it is"
        )


def open_observed(
    checkpoint: Checkpoint, spec: ModelSpec, device: torch.device, length: int, *, greatest: float = math.inf
) -> tuple[Transformer, ObservingLoader]:
    """A model in float32 for sequences of `length` tokens, its layers read one at a time.

    Args:
        greatest: what no weight of a matrix may be beyond.

    Raises:
        ModelError: it cannot be read, or EXL2 cannot hold it.
    """
    check_form(checkpoint, spec)
    loader = ObservingLoader(checkpoint, device, greatest=greatest)
    ends = load_ends(spec, loader, has_head(checkpoint))
    layers = OneAtATime(spec, loader)
    operations = DifferentiableOperations(torch.float32)
    return Transformer(spec, ends, layers, context=length, operations=operations), loader

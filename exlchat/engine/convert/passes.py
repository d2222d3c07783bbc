"""Passes of calibration text through a model, a layer at a time: forward, and backward for what errors cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.convert.observing import HEAD, Notes, ObservingLoader, Sum
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Places, Stream, Transformer
from exlchat.llm.info import ModelError

_SEED = 20260
# Logits of so many tokens are held at once.
_AT_ONCE = 512


class Passes:
    """Rows of text on their way through the layers.

    Args:
        transformer, loader: of `open_observed`.
        rows: int64 `[rows, length]`, token ids.
        kv_cache: how keys and values are stored on the way, if they are: a name of `KINDS`.
        share: of the card's memory that waits for rows, where others of this model are on their way with these.
        kept: how many states of the rows are held at once: `costs` keeps those before each layer.
    """

    def __init__(
        self,
        transformer: Transformer,
        loader: ObservingLoader,
        rows: Tensor,
        *,
        kv_cache: str | None = None,
        share: float = 1.0,
        kept: int = 1,
    ) -> None:
        self._transformer = transformer
        self._loader = loader
        self._places: Places = transformer.places(0, rows.shape[1])
        self._home = _home(transformer, kept * rows.numel(), share)
        self._length = rows.shape[1]
        self._cache = (
            None
            if kv_cache is None
            else KVCache(transformer.spec, kv_cache, torch.float32, transformer.device, self._length)
        )
        self.tokens = rows.numel()
        with torch.no_grad():
            self.hidden = [self._transformer.embed(ids.to(transformer.device), 0).to(self._home) for ids in rows]
        """float32 `[length, hidden]` of each row: what the next layer reads."""

    @torch.no_grad()
    def forward(self, index: int, *, moments: bool = False) -> Notes | None:
        """All rows through a layer; what its matrices read, if that is asked for."""
        notes = Notes() if moments else None
        self._loader.notebook.notes = notes
        for number, hidden in enumerate(self.hidden):
            stream = Stream(hidden.to(self._transformer.device, copy=True))
            self._through(index, stream)
            self._transformer.settle(stream)
            self.hidden[number] = stream.hidden.to(self._home)
        self._loader.notebook.notes = None
        if notes is not None:
            notes.last = None
        return notes

    def _through(self, index: int, stream: Stream) -> None:
        if self._cache is None:
            self._transformer.layer(index, stream, self._places)
            return
        sequence = KVSequence(self._cache)
        sequence.reserve(self._length)
        self._transformer.layer(index, stream, self._places, sequence)
        sequence.close()

    @torch.no_grad()
    def head(self) -> Notes:
        """What the head reads behind the last layer."""
        notes = Notes()
        for hidden in self.hidden:
            notes.read(HEAD, self._final(hidden))
        notes.last = None
        return notes

    def _final(self, hidden: Tensor) -> Tensor:
        return self._transformer.finish(Stream(hidden.to(self._transformer.device, copy=True)))

    def costs(self, tick: Callable[[], None]) -> dict[str, Sum]:
        """What errors in the outputs of each matrix cost: sums of squared gradients of the divergence, by name.

        The gradients are of the log likelihood of tokens drawn from the model itself, whose mean square is the Fisher
        information, half of which is the divergence that a small error makes.

        Args:
            tick: called after each layer, forward and backward.
        """
        transformer = self._transformer
        inputs = []
        for index in range(len(transformer.layers)):
            inputs.append(list(self.hidden))
            self.forward(index)
            tick()
        notes = Notes(moments=False)
        self._loader.notebook.notes = notes
        gradients = self._gradients()
        for index in range(len(transformer.layers) - 1, -1, -1):
            gradients = [self._backward(index, *both) for both in zip(inputs.pop(), gradients, strict=True)]
            tick()
        self._loader.notebook.notes = None
        return notes.costs

    def _gradients(self) -> list[Tensor]:
        """Of the residual stream behind the last layer."""
        device = self._transformer.device
        draws = torch.Generator(device).manual_seed(_SEED)
        found = []
        for hidden in self.hidden:
            gradient = torch.empty_like(hidden)
            for first in range(0, len(hidden), _AT_ONCE):
                part = slice(first, first + _AT_ONCE)
                with torch.enable_grad(), _kept():
                    leaf = hidden[part].to(device).detach().requires_grad_()
                    logits = self._transformer.scores(self._transformer.finish(Stream(leaf.clone())))
                    if not bool(logits.isfinite().all()):
                        raise ModelError("the model gives what is no number on the calibration text; get it again")
                    with torch.no_grad():
                        labels = torch.multinomial(logits.softmax(-1), 1, generator=draws).squeeze(1)
                    functional.cross_entropy(logits, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
                assert leaf.grad is not None
                gradient[part] = leaf.grad.to(self._home)
            found.append(gradient)
        return found

    def _backward(self, index: int, hidden: Tensor, gradient: Tensor) -> Tensor:
        device = self._transformer.device
        # Before gradients are on: weights are read once.
        weights = {observed.weight.data_ptr() for observed in self._loader.held.values()}
        with torch.enable_grad(), _kept(weights):
            leaf = hidden.to(device).detach().requires_grad_()
            stream = Stream(leaf.clone())
            self._transformer.layer(index, stream, self._places)
            self._transformer.settle(stream)
            stream.hidden.backward(gradient.to(device))  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return leaf.grad.to(self._home)


def _kept(weights: Sequence[int] | set[int] = ()) -> torch.autograd.graph.saved_tensors_hooks:
    """Has autograd keep copies: the layers overwrite the residual stream. Weights stay as they are."""

    def keep(tensor: Tensor) -> Tensor:
        return tensor if tensor.data_ptr() in weights else tensor.clone()

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


def _home(transformer: Transformer, tokens: int, share: float) -> torch.device:
    """Where the residual stream of all rows waits: on the card where it takes up to an eighth of what is free."""
    device = transformer.device
    if device.type != "cuda":
        return device
    needed = tokens * transformer.spec.hidden_size * 4
    return device if 8 * needed <= share * torch.cuda.mem_get_info(device)[0] else torch.device("cpu")

"""Models of any size beside their reference on the same tokens: one layer at a time of each is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.convert.observing import open_observed
from exlchat.engine.convert.passes import Passes
from exlchat.engine.evaluate.measures import Figures, Places
from exlchat.engine.layers.transformer import Stream, Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

# Logits of so many tokens of both models are held at once.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Read:
    """A text as a model has read it: what its head makes logits of. Nothing of the model stays in memory.

    Args:
        hidden: float32 `[length, hidden]` of each window, behind the last layer.
    """

    checkpoint: Checkpoint
    spec: ModelSpec
    device: torch.device
    hidden: Sequence[Tensor]

    def head(self) -> Transformer:
        """The model without its layers."""
        return open_observed(self.checkpoint, self.spec, self.device, 1)[0]

    @torch.no_grad()
    def logits(self, head: Transformer, window: int, places: slice) -> Tensor:
        """float32 `[places, vocab]`."""
        return head.scores(head.finish(Stream(self.hidden[window][places].to(self.device, copy=True))))


def read(checkpoint: Checkpoint, rows: Tensor, device: torch.device) -> Read:
    """With keys and values as they are computed; arguments and errors as of `read_with`."""
    return read_with([None], checkpoint, rows, device)[0]


def read_with(
    kv_caches: Sequence[str | None],
    checkpoint: Checkpoint,
    rows: Tensor,
    device: torch.device,
    tick: Callable[[], None] = lambda: None,
) -> list[Read]:
    """The same text with caches of several kinds; the model's files are read once for all.

    Args:
        kv_caches: how keys and values are stored on the way; `None` as they are computed.
        checkpoint: the model.
        rows: int64 `[windows, length]`, token ids.
        device: where it is computed, in float32.
        tick: called after each layer.

    Raises:
        ModelError: it cannot be read, or the ids are not its own.
    """
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    if int(rows.max()) >= spec.vocab_size:
        raise ModelError(
            f"{checkpoint.path}: the text has token {int(rows.max())}, and this model has {spec.vocab_size}; "
            "compare models of one vocabulary"
        )
    transformer, loader = open_observed(checkpoint, spec, device, rows.shape[1])
    passes = [Passes(transformer, loader, rows, kv_cache=kind, share=1 / len(kv_caches)) for kind in kv_caches]
    for index in range(spec.num_layers):
        for one in passes:
            one.forward(index)
        tick()
    return [Read(checkpoint, spec, device, one.hidden) for one in passes]


def figures_of(read: Read, rows: Tensor, reference: Read | None = None) -> Figures:
    """What a model says of the rows, beside what its reference says.

    Raises:
        ModelError: one of them gives what is no number.
    """
    found = Places()
    head = read.head()
    other = head if reference is None or reference.checkpoint is read.checkpoint else reference.head()
    shared = min(read.spec.vocab_size, other.spec.vocab_size)
    for window, ids in enumerate(rows):
        for first in range(0, len(ids), _AT_ONCE):
            places = slice(first, min(first + _AT_ONCE, len(ids)))
            own = read.logits(head, window, places)[:, :shared]
            theirs = None if reference is None else reference.logits(other, window, places)[:, :shared]
            for name, logits in (("model", own), ("reference", theirs)):
                if logits is not None and not bool(logits.isfinite().all()):
                    raise ModelError(f"the {name} gives what is no number at tokens {first} and on of window {window}")
            found.add(window, own, ids[places.start + 1 : places.stop + 1], theirs)
    return found.figures()

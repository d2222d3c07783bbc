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
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

# Logits of so many tokens of both models are held at once.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Read:
    """A text as a model has read it: what its head makes logits of.

    Args:
        vocab_size: of the model.
        transformer: its ends.
        hidden: float32 `[length, hidden]` of each window, behind the last layer.
    """

    vocab_size: int
    transformer: Transformer
    hidden: Sequence[Tensor]

    @torch.no_grad()
    def logits(self, window: int, places: slice) -> Tensor:
        """float32 `[places, vocab]`."""
        hidden = self.hidden[window][places]
        stream = Stream(hidden.to(self.transformer.device, copy=True))
        return self.transformer.scores(self.transformer.finish(stream))


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
    return [Read(spec.vocab_size, transformer, one.hidden) for one in passes]


def figures_of(read: Read, rows: Tensor, reference: Read | None = None) -> Figures:
    """What a model says of the rows, beside what its reference says.

    Raises:
        ModelError: one of them gives what is no number.
    """
    found = Places()
    shared = read.vocab_size if reference is None else min(read.vocab_size, reference.vocab_size)
    for window, ids in enumerate(rows):
        for first in range(0, len(ids), _AT_ONCE):
            places = slice(first, min(first + _AT_ONCE, len(ids)))
            own = read.logits(window, places)[:, :shared]
            theirs = None if reference is None else reference.logits(window, places)[:, :shared]
            for name, logits in (("model", own), ("reference", theirs)):
                if logits is not None and not bool(logits.isfinite().all()):
                    raise ModelError(f"the {name} gives what is no number at tokens {first} and on of window {window}")
            found.add(window, own, ids[places.start + 1 : places.stop + 1], theirs)
    return found.figures()

"""Models of any size beside their reference on the same tokens: one layer at a time of each is in memory."""

from __future__ import annotations

from collections.abc import Callable

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


class Read:
    """A text as a model has read it: what its head makes logits of.

    Args:
        checkpoint: the model.
        rows: int64 `[windows, length]`, token ids.
        device: where it is computed, in float32.
        kv_cache: how keys and values are stored on the way.
        tick: called after each layer.

    Raises:
        ModelError: it cannot be read, or the ids are not its own.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Tensor,
        device: torch.device,
        *,
        kv_cache: str | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
        if int(rows.max()) >= spec.vocab_size:
            raise ModelError(
                f"{checkpoint.path}: the text has token {int(rows.max())}, and this model has {spec.vocab_size}; "
                "compare models of one vocabulary"
            )
        self.vocab_size = spec.vocab_size
        self._transformer, loader = open_observed(checkpoint, spec, device, rows.shape[1])
        passes = Passes(self._transformer, loader, rows, kv_cache=kv_cache)
        for index in range(spec.num_layers):
            passes.forward(index)
            tick()
        self._hidden = passes.hidden

    @torch.no_grad()
    def logits(self, window: int, places: slice) -> Tensor:
        """float32 `[places, vocab]`."""
        return _logits(self._transformer, self._hidden[window][places])


def _logits(transformer: Transformer, hidden: Tensor) -> Tensor:
    return transformer.scores(transformer.finish(Stream(hidden.to(transformer.device, copy=True))))


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

"""`exlchat evaluate`: models, with caches of several kinds, beside their reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.convert.text import EVALUATION, bundled_text, digest, read_text, rows_of
from exlchat.engine.evaluate.compare import Read, figures_of, read_with
from exlchat.engine.evaluate.measures import Figures
from exlchat.engine.formats.inventory import describe_format
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import shortage_named
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

DEFAULT_TOKENS, DEFAULT_CONTEXT = 32_768, 2048
# Of the text, what tokenizers are compared by.
_COMPARED = 20_000
_NO_ROOM = "free some, or take --device cpu"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to measure.

    Args:
        models: folders.
        reference: the model that others are measured against; only perplexities without one.
        text: a file; the bundled text unless given.
        tokens: of it, at most.
        context: of a window.
        kv_caches: kinds of caches that each model is measured with too.
        device: where, in float32.
    """

    models: tuple[Path, ...]
    device: torch.device
    reference: Path | None = None
    text: Path | None = None
    tokens: int = DEFAULT_TOKENS
    context: int = DEFAULT_CONTEXT
    kv_caches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A model, as it is stored, with one kind of cache.

    Args:
        bytes: of its files of weights.
        kv_cache: `None`: keys and values as they were computed.
        identity: of its weights and configuration.
    """

    model: Path
    identity: str
    format: str
    bytes: int
    kv_cache: str | None
    figures: Figures


@dataclass(frozen=True, slots=True)
class Report:
    """Args: windows, length: of the text. text: a hash of its tokens. entries: the smallest file first."""

    windows: int
    length: int
    text: str
    reference: Path | None
    entries: list[Entry]


def evaluate(wishes: Wishes, on_step: Callable[[str, int, int], None]) -> Report:
    """Every model on the same tokens, one layer at a time in memory.

    Args:
        on_step: told the model, and how many of its layers are done.

    Raises:
        ModelError: one cannot be read, or they do not speak of the same tokens.
    """
    folders = [*([] if wishes.reference is None else [wishes.reference]), *wishes.models]
    checkpoints = {folder: Checkpoint(folder) for folder in folders}
    text = bundled_text(EVALUATION) if wishes.text is None else read_text(wishes.text)
    tokenizer = _one_tokenizer(list(checkpoints.values()), text)
    length = min(wishes.context, *(_spec(checkpoint).max_position_embeddings for checkpoint in checkpoints.values()))
    rows = rows_of(text, tokenizer, wishes.tokens, length)

    def read(folder: Path, kv_caches: Sequence[str | None]) -> list[Read]:
        layers, done = _spec(checkpoints[folder]).num_layers, 0

        def tick() -> None:
            nonlocal done
            done += 1
            on_step(folder.name, done, layers)

        with shortage_named(wishes.device, _NO_ROOM):
            return read_with(kv_caches, checkpoints[folder], rows, wishes.device, tick)

    reference = None if wishes.reference is None else read(wishes.reference, [None])[0]
    entries = []
    for folder in wishes.models:
        kind, size, identity = describe_format(checkpoints[folder]), _bytes(folder), checkpoints[folder].identity
        kinds = (None, *wishes.kv_caches)
        for kv_cache, with_it in zip(kinds, read(folder, kinds), strict=True):
            with shortage_named(wishes.device, _NO_ROOM):
                figures = figures_of(with_it, rows, reference)
            entries.append(Entry(folder, identity, kind, size, kv_cache, figures))
    entries.sort(key=lambda entry: entry.bytes)
    return Report(rows.shape[0], rows.shape[1], digest(rows), wishes.reference, entries)


def _spec(checkpoint: Checkpoint) -> ModelSpec:
    return read_spec(checkpoint.config, str(checkpoint.path / "config.json"))


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _one_tokenizer(checkpoints: list[Checkpoint], text: str) -> Tokenizer:
    first: tuple[Tokenizer, list[int]] | None = None
    for checkpoint in checkpoints:
        tokenizer = Tokenizer(checkpoint, _spec(checkpoint).vocab_size)
        ids = tokenizer.encode(text[:_COMPARED], special=False)
        if first is not None and ids != first[1]:
            raise ModelError(
                f"{checkpoint.path}: makes other tokens of the text than {checkpoints[0].path}; only models of one "
                "tokenizer can be compared token by token"
            )
        first = first or (tokenizer, ids)
    if first is None:
        raise ModelError("there is no model to evaluate; name its folder")
    return first[0]

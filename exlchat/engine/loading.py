"""Weights from a checkpoint onto a device: in which form, whether they fit, and how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from exlchat.engine.card_choice import Placed
from exlchat.engine.decode.fit import why_not
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_ends, load_layer, load_transformer
from exlchat.engine.layers.operations import Operations
from exlchat.engine.layers.quantized_linear import MEDIUM_ROWS
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.loading import parallel_transformer
from exlchat.engine.placement import NO_MEMORY, is_shortage
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.compiling import BuildProgress
from exlchat.ext.errors import ExtensionError
from exlchat.ext.open import open_kernels
from exlchat.ext.ops import Kernels
from exlchat.llm.info import LoadProgress, ModelError

OnProgress = Callable[[LoadProgress], None]

# As many as are multiplied by cuBLAS; as many as the kernels of the step do not take; and one of those.
_WARM_UP_TOKENS = (MEDIUM_ROWS + 1, 64, 1)
_COMPILING = "compiling the CUDA kernels (first run on this card)"


def open_extension(
    devices: Sequence[torch.device], build_cache: Path | None, on_progress: OnProgress | None
) -> Kernels:
    """The CUDA kernels for some cards, compiled if that has not been done yet, which takes about a minute.

    Args:
        devices: CUDA devices.
        build_cache: the folder that keeps what was compiled, `~/.cache/exlchat` unless given.
        on_progress: told how far compiling is. An exception it raises stops it.

    Raises:
        ModelError: there are none, and none can be made here: why, how to mend it, and how to go on without.
    """

    def report(progress: BuildProgress) -> None:
        if on_progress is not None:
            what = progress.text if progress.waiting else _COMPILING
            on_progress(LoadProgress(progress.done, progress.total, what))

    try:
        return open_kernels(devices, _user_cache() if build_cache is None else build_cache, on_progress=report)
    except ExtensionError as error:
        raise ModelError(f"{error}; or go on without the kernels, slower: --no-ext") from error


def _user_cache() -> Path:
    try:
        return Path.home() / ".cache" / "exlchat"
    except RuntimeError:
        raise ModelError("there is no home folder to keep the kernels in; name another with build_cache") from None


def check_vocabulary(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Sees that the embedding has as many rows as `config.json` says, so that no tokenizer is blamed for it.

    Raises:
        ModelError: it has others.
    """
    name = "model.embed_tokens.weight"
    shape = checkpoint.shape(name) if name in checkpoint.names else ()
    if len(shape) == 2 and shape[0] != spec.vocab_size:
        raise ModelError(
            f"{checkpoint.file_of(name)}: {checkpoint.name_in_file(name)} is {shape[0]} x {shape[1]}, but config.json "
            f"makes it {spec.vocab_size} x {spec.hidden_size} (vocab_size); take config.json from the same model"
        )


def load_weights(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    loader: LayerLoader,
    operations: Operations,
    on_progress: OnProgress | None,
    *,
    context: int,
    placed: Placed,
    kernels: Kernels | None,
) -> Transformer:
    """The decoder for sequences of at most `context` tokens, on its cards; with `kernels` where they compute.

    It is read tensor by tensor, so that the machine never holds more than one of them besides the files.

    Raises:
        ModelError: a tensor is wrong, or memory ran out.
    """
    if any(name.startswith(f"model.layers.{spec.num_layers}.") for name in checkpoint.names):
        # Llama has none to spare: run without its last layers it would talk nonsense.
        raise ModelError(
            f"{checkpoint.path / 'config.json'}: num_hidden_layers is {spec.num_layers}, but the weights have more; "
            "take config.json from the original model"
        )
    steps = spec.num_layers + 2
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(LoadProgress(done, steps, "reading weights"))

    # Any part of one: half a head must not pass for a head that is the embedding.
    has_head = any(name.startswith("lm_head.") for name in checkpoint.names)
    if not has_head and not spec.tied_head:
        raise ModelError(
            f"{checkpoint.missing('lm_head.weight')}; tie_word_embeddings of config.json does not say that the "
            "embedding is the head; download the model again"
        )
    try:
        if placed.parts is None:
            return load_transformer(spec, loader, has_head, tick, operations, context=context, split=placed.split)
        ends = load_ends(spec, loader, has_head)
        tick()

        def layers() -> Iterator[DecoderLayer]:
            for index in range(spec.num_layers):
                yield load_layer(spec, loader, index)
                tick()

        transformer = parallel_transformer(
            spec,
            ends,
            layers(),
            placed.parts,
            placed.split,
            context=context,
            operations=operations,
            kernels=kernels,
        )
        tick()
        return transformer
    except NO_MEMORY as error:
        if not is_shortage(error):
            raise
        raise ModelError(
            f"{checkpoint.path}: memory ran out after {done} of {steps} parts of the weights; close other programs, or "
            "take fewer bits or a smaller model"
        ) from error


def open_graphs(
    transformer: Transformer, cache: KVCache, kernels: Kernels, *, dependent: bool | None
) -> DecodeGraphs | None:
    """The decode steps as CUDA graphs, or `None` for a model that they do not suit, which decodes through torch.

    Args:
        dependent: see `DecodeGraphs`.

    Raises:
        ModelError: no memory for it, or the card cannot run a kernel of it.
    """
    if why_not(transformer, cache) is not None:
        return None
    try:
        return DecodeGraphs(transformer, cache, kernels, dependent=dependent)
    except ExtensionError as error:
        raise ModelError(
            f"the kernels cannot run this model on this card, perhaps for want of shared memory: {error}; "
            "go on without them, slower: --no-ext"
        ) from error


def warm_up(transformer: Transformer, cache: KVCache) -> None:
    """Computes two prompts and one token, so that the first answer does not wait for what GPUs prepare at first use.

    cuBLAS and cuDNN took an H200 0.45 s of the first prompt, the plans of the kernels for an 8B another 0.35 s.

    Args:
        cache: of the same model.

    Raises:
        ModelError: no memory for it, or the card cannot run a kernel of it.
    """
    try:
        sequence = KVSequence(cache)
        for tokens in (min(count, cache.max_seq_len) for count in _WARM_UP_TOKENS):
            sequence.reserve(tokens)
            transformer.forward(torch.zeros(tokens, dtype=torch.int64, device=transformer.device), sequence)
        for device in transformer.split.devices:
            torch.cuda.synchronize(device)
        sequence.close()
    except torch.OutOfMemoryError as error:
        raise ModelError("no memory to compute beside the weights; take fewer bits or a smaller model") from error

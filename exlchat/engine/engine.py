"""How a model is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from exlchat.engine.card_choice import Placed, choose_devices, kinds_of, place
from exlchat.engine.draft.draft_model import ModelDrafter
from exlchat.engine.formats.inventory import (
    describe_format,
    has_float_head,
    is_quantized,
    parameter_count,
    part_bytes,
    weight_sizes,
)
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.host_layers import host_notice
from exlchat.engine.kv.archive import PageArchive, open_archive
from exlchat.engine.kv.budget import CacheWishes
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.disk.folder import clear_pages
from exlchat.engine.kv.hash import KEYS_AND_VALUES, root_hash
from exlchat.engine.kv.rows import OpenRows, TorchLayerRows, kernel_rows
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import MOST_AT_ONCE, cache_kind
from exlchat.engine.layers.operations import KernelOperations, TorchOperations
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.loading import check_vocabulary, load_weights, open_extension, open_graphs, warm_up
from exlchat.engine.local_engine import LocalEngine, Parts
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import choose_dtype, dtypes_for, give_memory_back, prepare_torch
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.engine.text.template_files import DEFAULT, read_templates
from exlchat.engine.text.tokenizer import Tokenizer, TokenizerToCome
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.cards import ANY_CARDS, CardWishes
from exlchat.llm.info import (
    LoadProgress,
    ModelError,
    ModelInfo,
)
from exlchat.llm.limits import ROUNDED_HEAD_BITS

# A prefill looks at the cancel flag between chunks, so a chunk should take well under a second. A GPU is only busy
# with thousands of tokens; 2 CPU cores do about 2e11 multiply-adds a second, and under 16 tokens they wait for memory.
_CUDA_PREFILL_CHUNK = MOST_AT_ONCE
_CPU_PREFILL_WEIGHTS = 5e10


class _Left:
    """Whether a load has failed, and its error may still hold what it had taken."""

    behind = False


@contextmanager
def _after_a_failure() -> Iterator[None]:
    """What a load before this one has left goes first: on a card always, as a model that was dropped may lie there.

    Looking for it takes some 100 ms, which a start on the CPU does not wait for.
    """
    if _Left.behind or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        give_memory_back()
    _Left.behind = True
    yield
    _Left.behind = False


@_after_a_failure()
def load(
    model_dir: str | Path | Checkpoint,
    *,
    device: str = "auto",
    kv_cache: str = "fp16",
    max_seq_len: int | None = None,
    cache_tokens: int | None = None,
    cache_gigabytes: float | None = None,
    conversations: int | None = None,
    cards: CardWishes = ANY_CARDS,
    page_folder: Path | None = None,
    page_bytes: int = 0,
    prefill_chunk: int | None = None,
    extension: bool = True,
    quantize_head: int | None = None,
    build_cache: Path | None = None,
    dependent_launch: bool | None = None,
    draft: LocalEngine | None = None,
    without_draft: str = "",
    bundled: bool = False,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> LocalEngine:
    """Loads a model directory.

    Args:
        model_dir: holds `config.json`, a tokenizer and `*.safetensors`; or a checkpoint, opened or made.
        device: `auto` (a CUDA GPU if there is one), `cpu`, `cuda` or `cuda:N`.
        kv_cache: how keys and values are stored: `fp32`, `fp16`, `fp8`, `q8`, `q6` or `q4`.
        max_seq_len: context in tokens; the model's own, at most 32768, unless given.
        cache_tokens, cache_gigabytes: how much the cache holds of all conversations, in tokens or in GiB.
        conversations: how many contexts it holds where neither is given, as far as there is room; three unless given.
        cards: which cards its layers lie on, how many on which, and the weights of how many in the machine's memory. On
            the CPU a split makes logical cards, each with tensors of its own.
        page_folder, page_bytes: where pages of the cache are kept for later runs, and how many bytes of them, those of
            other models included. With 0 what lies there is removed, in the background; without a folder nothing is
            read, written or removed.
        prefill_chunk: prompt tokens a step; by device and size of the model unless given.
        extension: run quantized models on a GPU through the CUDA kernels, which may have to be compiled first; without
            it, through plain torch, their weights written out in float16.
        quantize_head: bits (4, 6 or 8) that a float output head is rounded to, for the kernels: of GPTQ and AWQ files,
            tied embeddings, float models. A head that the file holds quantized stays as it is; without kernels, as on
            the CPU, it is refused.
        build_cache: the folder that keeps compiled kernels, `~/.cache/exlchat` unless given.
        dependent_launch: whether kernels of the decode step may start before their predecessors end; where the card can
            (sm_90 and later) unless given.
        draft: a smaller model with the same vocabulary, which guesses tokens ahead for requests that say so; it is
            closed and unloaded with this one.
        without_draft: why there is none although one was wished for: `ModelInfo` says so.
        bundled: whether the model is part of the program; the tokenizers of others are tried before they are used.
        on_progress: called in this thread while kernels are compiled and weights are read.

    Raises:
        ModelError: one line that says what is wrong and how to mend it.
    """
    checkpoint = model_dir if isinstance(model_dir, Checkpoint) else Checkpoint(Path(model_dir))
    # Before any weight is read: one that is replaced meanwhile must not get the old weights' pages under its name. Only
    # the disk asks for it.
    identity = checkpoint.identity if page_folder is not None and page_bytes > 0 else ""
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    check_vocabulary(checkpoint, spec)
    coming = TokenizerToCome(checkpoint, spec.vocab_size, bundled=bundled)
    report = coming.beside(on_progress)
    kind = cache_kind(spec, kv_cache)
    devices = choose_devices(device, cards)
    target = devices[0]
    parameters = parameter_count(checkpoint)
    _check_head(quantize_head, kernels=extension and target.type == "cuda")
    head_bits = quantize_head if has_float_head(checkpoint) else None
    # Of a float model in float16 they hold little, but its step is captured.
    useful = is_quantized(checkpoint) or head_bits is not None or torch.float16 in dtypes_for(checkpoint, target)
    quantized = extension and target.type == "cuda" and useful
    wishes = CacheWishes(max_seq_len, cache_tokens, cache_gigabytes, conversations)
    dtype = choose_dtype(checkpoint, target, weight_sizes(checkpoint, stay_quantized=quantized, head_bits=head_bits))
    weights = part_bytes(checkpoint, spec.num_layers, dtype, stay_quantized=quantized, head_bits=head_bits)
    placed = place(str(checkpoint.path), spec, kind, wishes, cards=cards, devices=devices, weights=weights)
    split, plan, target = placed.split, placed.plan, placed.split.first
    kernels = open_extension(split.devices, build_cache, report) if quantized else None
    prepare_torch(target, parameters)
    # A bfloat16 model comes with kernels for its head alone.
    fused = kernels if dtype == torch.float16 else None
    operations = TorchOperations(dtype) if fused is None else KernelOperations(fused)
    loader = LayerLoader(checkpoint, target, dtype, kernels, head_bits=head_bits)
    coming.look()
    transformer = load_weights(
        checkpoint, spec, loader, operations, report, context=plan.context, placed=placed, kernels=kernels
    )
    tokenizer = coming.get()
    stop_ids = tokenizer.stop_ids(checkpoint.config, spec.vocab_size)
    guesses = None if draft is None else _drafter(draft, tokenizer, checkpoint.path)
    rows: OpenRows = TorchLayerRows
    if fused is not None and kv_cache != "fp32":
        rows = kernel_rows(fused)
    root = _root(identity, spec, placed, kv_cache, dtype)
    cache = KVCache(spec, kv_cache, dtype, target, plan.context, tokens=plan.tokens, root=root, rows=rows, split=split)
    archive = None if page_folder is None else _archive(cache, page_folder, page_bytes)
    chunk = min(prefill_chunk or _prefill_chunk(target, parameters), MOST_AT_ONCE)
    graphs = None if kernels is None else open_graphs(transformer, cache, kernels, dependent=dependent_launch)
    if target.type == "cuda":
        warm_up(transformer, cache)

    def other_cache() -> KVCache:
        return KVCache(spec, kv_cache, dtype, target, plan.context, root=root, rows=rows, split=split)

    scheduler = Scheduler(
        transformer,
        tokenizer,
        cache,
        stop_ids,
        chunk,
        graphs=graphs,
        archive=archive,
        draft_model=guesses,
        other_cache=other_cache,
    )
    info = _info(
        checkpoint,
        spec,
        tokenizer,
        stop_ids=stop_ids,
        cache=cache,
        transformer=transformer,
        head_bits=head_bits,
        captured=graphs is not None,
    )
    name = "" if draft is None else draft.info.name
    info = dataclasses.replace(info, draft_model=name, without_draft=without_draft)
    return LocalEngine(info, Parts(tokenizer, transformer, cache, scheduler, archive, draft))


def _root(identity: str, spec: ModelSpec, placed: Placed, kv_cache: str, dtype: torch.dtype) -> bytes:
    """Of everything that keys and values depend on besides the ids."""
    context = str(placed.plan.context) if spec.rope_depends_on_context else ""
    parts = {"model": identity, "rope": f"{spec.ropes} {context}", "cache": kv_cache, "dtype": str(dtype)}
    kinds = kinds_of(placed.split.devices)
    if placed.parts is not None:
        # What a layer gives is a sum of so many parts.
        parts["cards"] = f"{kinds} together: {placed.parts}"
    elif len(set(kinds)) > 1:
        # Each kind sums in an order of its own.
        parts["cards"] = f"{kinds} {placed.split.ends}"
    return root_hash(version=KEYS_AND_VALUES, **parts)


def _drafter(draft: LocalEngine, tokenizer: Tokenizer, path: Path) -> ModelDrafter:
    """Guesses by a draft model. Raises `ModelError` where its tokens are others."""
    parts = draft._parts
    other = tokenizer.unlike(parts.tokenizer)
    if other is not None:
        raise ModelError(
            f"{draft.info.path}: cannot draft for {path.name}: {other}; take a smaller model of the same family"
        )
    return ModelDrafter(parts.scheduler.runner, KVSequence(parts.cache))


def _check_head(bits: int | None, *, kernels: bool) -> None:
    if bits is not None and bits not in ROUNDED_HEAD_BITS:
        raise ModelError(f"quantize_head is {bits!r}; it must be one of {', '.join(map(str, ROUNDED_HEAD_BITS))}")
    if bits is not None and not kernels:
        raise ModelError("--quantize-head is for the CUDA kernels, which the CPU and --no-ext go without; leave it out")


def _archive(cache: KVCache, folder: Path, most_bytes: int) -> PageArchive | None:
    if most_bytes <= 0:
        clear_pages(folder)
        return None
    return None if cache.has_windows else open_archive(cache, folder, most_bytes)


def _info(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    tokenizer: Tokenizer,
    *,
    stop_ids: tuple[int, ...],
    cache: KVCache,
    transformer: Transformer,
    head_bits: int | None,
    captured: bool,
) -> ModelInfo:
    templates = read_templates(checkpoint)
    return ModelInfo(
        name=checkpoint.path.resolve().name,
        path=str(checkpoint.path.resolve()),
        architecture=spec.architecture,
        quantization=describe_format(checkpoint) + (f", {head_bits}-bit head" if head_bits else ""),
        parameters=parameter_count(checkpoint),
        vocab_size=spec.vocab_size,
        max_seq_len=cache.max_seq_len,
        device=", ".join(map(str, dict.fromkeys(transformer.split.devices))),
        dtype=str(transformer.dtype).removeprefix("torch."),
        bos_token=tokenizer.named_tokens.get("bos_token", ""),
        eos_token=tokenizer.named_tokens.get("eos_token", ""),
        stop_ids=stop_ids,
        special_tokens=tokenizer.special_tokens,
        chat_template=templates.pop(DEFAULT, None),
        named_templates=templates,
        added_tokens=tokenizer.added_tokens,
        named_tokens=tokenizer.named_tokens,
        notices=tuple(filter(None, [host_notice(transformer), None if captured else _together_notice(transformer)])),
    )


def _together_notice(transformer: Transformer) -> str | None:
    """Of a model without captured steps, as one in bfloat16, over cards that compute every layer together."""
    if not transformer.split.together or transformer.device.type != "cuda":
        return None
    many = len(transformer.split.devices)
    return f"{many} cards compute every layer together, but without captured steps: slower, perhaps, than one of them"


def _prefill_chunk(device: torch.device, parameters: int) -> int:
    if device.type == "cuda":
        return _CUDA_PREFILL_CHUNK
    return max(16, min(512, int(_CPU_PREFILL_WEIGHTS / parameters)))

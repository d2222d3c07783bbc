"""Loading a model for the app and for pipe mode. torch is imported inside the functions, never before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import engine, paths
from exlchat.app.runtime.cache_sizes import CacheSizes
from exlchat.chat.prompt import template_process
from exlchat.engine.text import tokenizer_process
from exlchat.llm.cards import ANY_CARDS, CardWishes
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.options import AppOptions, DeviceChoice
    from exlchat.config.layers import Resolved
    from exlchat.llm.info import LoadProgress
    from exlchat.llm.limits import KvCacheChoice
    from exlchat.llm.port import Engine

_BY_WHAT_THERE_IS = CacheSizes()


def load_model(
    model_path: Path,
    *,
    device: DeviceChoice = "auto",
    kv_cache: KvCacheChoice = "auto",
    context: int | None = None,
    cache_sizes: CacheSizes = _BY_WHAT_THERE_IS,
    cards: CardWishes = ANY_CARDS,
    extension: bool = True,
    quantize_head: int | None = None,
    usual_head: int | None = None,
    draft_path: Path | None = None,
    without_draft: str = "",
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> Engine:
    """Load the model in `model_path`; blocks, so call it away from the UI thread.

    Args:
        context: the longest sequence in tokens; the model's own unless given.
        cache_sizes: how much of all sequences is kept; nothing on the disk unless given.
        cards: on which of them it lies.
        extension: without it a GPU does without the CUDA kernels.
        quantize_head: bits of an output head of floats, asked for by name: refused where there are no kernels.
        usual_head: the same from the settings, which say nothing about the CPU or about going without kernels.
        draft_path: a smaller model with the same vocabulary, which guesses tokens ahead; it is loaded first.
        without_draft: why there is none although one was wished for.
        on_progress: runs on the calling thread; before the weights it tells of a compile, if one is needed.

    Raises:
        ModelError: one line that names the file, what is wrong and how to mend it.
    """
    # Whatever template the model brings along is rendered there, the first time as soon as the model is loaded.
    template_process.start()
    bundled = paths.is_bundled(model_path)
    # Nor is a stranger's tokenizer opened before it has been tried elsewhere, while torch is imported here.
    for strange in filter(None, (draft_path, None if bundled else model_path)):
        tokenizer_process.start(strange)
    if quantize_head is None and extension and _on_gpu(device):
        quantize_head = usual_head
    precision, build_cache = _cache_precision(kv_cache, device), paths.folders().cache
    draft = None
    if draft_path is not None:
        # Most starts have none.
        from exlchat.engine.draft.loading import load_draft

        draft = load_draft(
            draft_path,
            context=context,
            device=device,
            kv_cache=precision,
            cards=cards,
            extension=extension,
            build_cache=build_cache,
            on_progress=on_progress,
        )
    try:
        return engine.load(
            model_path,
            device=device,
            kv_cache=precision,
            max_seq_len=context,
            cache_tokens=cache_sizes.tokens,
            cache_gigabytes=cache_sizes.gigabytes,
            conversations=cache_sizes.conversations,
            cards=cards,
            page_folder=None if cache_sizes.disk_gigabytes is None else build_cache,
            page_bytes=cache_sizes.disk_bytes,
            extension=extension,
            quantize_head=quantize_head,
            build_cache=build_cache,
            draft=draft,
            without_draft=without_draft,
            bundled=bundled,
            on_progress=on_progress,
        )
    except BaseException:
        if draft is not None:
            draft.unload()
        raise
    finally:
        tokenizer_process.close()


def load_wanted(
    model_path: Path,
    options: AppOptions,
    held: Resolved,
    *,
    kept: bool,
    conversations: int | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> Engine:
    """Load a model as the settings that hold for it say.

    Args:
        held: of these options, for this model.
        kept: whether what is said outlives this run; pages of the cache tell what was said, so they do or do not too.
        conversations: that are to find room in the cache beside each other, where no size of it is wished for.

    Raises:
        ModelError: as `load_model`.
    """
    tokens, gigabytes, on_disk = map(held.value, ("cache_tokens", "cache_gb", "disk_gb"))
    cache_sizes = CacheSizes(tokens, gigabytes, on_disk, conversations)
    draft, without_draft = _fitting_draft(model_path, options, held)
    head, typed_head = held.value("quantize_head"), held.source("quantize_head") == "typed"
    cards = card_wishes(options, held)
    if model_path == options.model_path:
        # Another model has other layers, and may have too few heads.
        cards = replace(cards, split=options.split, tensor_parallel=options.tensor_parallel)
    return load_model(
        model_path,
        device=options.device,
        kv_cache=held.value("kv_cache"),
        context=held.value("context"),
        cache_sizes=cache_sizes if kept else cache_sizes.in_memory_only(),
        cards=cards,
        extension=held.value("extension"),
        quantize_head=head if typed_head else None,
        usual_head=None if typed_head else head,
        draft_path=draft,
        without_draft=without_draft,
        on_progress=on_progress,
    )


def card_wishes(options: AppOptions, held: Resolved) -> CardWishes:
    """What holds of the cards; of the settings, which say nothing about the CPU, only where one is used."""
    on_card = _on_gpu(options.device)

    def said(name: str, unsaid: Any) -> Any:
        return held.value(name) if on_card or held.source(name) == "typed" else unsaid

    return CardWishes(said("cards", ()), reserve=said("reserve", ()), host_layers=said("host_layers", None))


def engine_for(
    options: AppOptions,
    held: Resolved,
    *,
    kept: bool,
    conversations: int | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> Engine:
    """What this start is answered by: a server, or the model that it names. Arguments and errors as of `load_wanted`.

    Raises:
        ModelError: besides, there is no model.
    """
    if options.remote is not None:
        # No model that is loaded here needs it.
        from exlchat.app.runtime.remote_loading import connect_to

        return connect_to(options.remote, on_progress)
    if options.model_path is None:
        raise ModelError("no model is there; give a model folder: -m FOLDER")
    return load_wanted(
        options.model_path, options, held, kept=kept, conversations=conversations, on_progress=on_progress
    )


def draft_path(model_path: Path, options: AppOptions, held: Resolved) -> Path | None:
    """Where the draft model lies. The bundled guide, which is as small as any and of a family of its own, has none
    unless this start was given both.
    """
    wanted: str | None = held.value("draft_model")
    if wanted is None or (paths.is_bundled(model_path) and not _typed_together(model_path, options, held)):
        return None
    return Path(wanted) if held.source("draft_model") == "typed" else paths.expanded(wanted)


def _typed_together(model_path: Path, options: AppOptions, held: Resolved) -> bool:
    return held.source("draft_model") == "typed" and options.model_path == model_path


def _fitting_draft(model_path: Path, options: AppOptions, held: Resolved) -> tuple[Path | None, str]:
    """The draft model, or none and why: one that was not typed with this model is left out where it does not fit."""
    wanted = draft_path(model_path, options, held)
    if wanted is None or _typed_together(model_path, options, held):
        return wanted, ""
    # Most starts have none.
    from exlchat.engine.draft.loading import why_not_draft

    why = why_not_draft(model_path, wanted)
    return (wanted, "") if why is None else (None, why)


def _cache_precision(wanted: KvCacheChoice, device: DeviceChoice) -> str:
    """`auto` is fp32 on the CPU, whose half-precision arithmetic is slow and saves nothing that matters there."""
    if wanted != "auto":
        return wanted
    return "fp16" if _on_gpu(device) else "fp32"


def _on_gpu(device: DeviceChoice) -> bool:
    if device == "auto":
        import torch

        return torch.cuda.is_available()
    return device == "cuda"

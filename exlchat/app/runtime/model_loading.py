"""Loading a model for the app and for pipe mode. torch is imported inside the functions, never before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import engine, paths
from exlchat.app.runtime.cache_sizes import CacheSizes
from exlchat.chat.prompt import template_process
from exlchat.engine.text import tokenizer_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.library.memory import ModelSettings
    from exlchat.app.options import AppOptions, DeviceChoice
    from exlchat.config.schema import KvCacheChoice
    from exlchat.config.settings import Settings
    from exlchat.llm.info import LoadProgress
    from exlchat.llm.port import Engine

_BY_WHAT_THERE_IS = CacheSizes()


def load_model(
    model_path: Path,
    *,
    device: DeviceChoice = "auto",
    kv_cache: KvCacheChoice = "auto",
    context: int | None = None,
    cache_sizes: CacheSizes = _BY_WHAT_THERE_IS,
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
    settings: Settings,
    wanted: ModelSettings,
    *,
    kept: bool,
    on_progress: Callable[[LoadProgress], None] | None = None,
) -> Engine:
    """Load a model as was typed, else as is remembered of it, else as settings.toml says.

    Args:
        wanted: `ModelSettings.typed_or` of these options and settings.
        kept: whether what is said outlives this run; pages of the cache tell what was said, so they do or do not too.

    Raises:
        ModelError: as `load_model`.
    """
    cache_sizes = options.cache_sizes.or_settings(settings)
    draft, without_draft = _fitting_draft(model_path, options, settings)
    return load_model(
        model_path,
        device=options.device,
        kv_cache=wanted.kv_cache or "auto",
        context=wanted.context,
        cache_sizes=cache_sizes if kept else cache_sizes.in_memory_only(),
        extension=settings.extension if options.extension is None else options.extension,
        quantize_head=options.quantize_head,
        usual_head=settings.quantize_head,
        draft_path=draft,
        without_draft=without_draft,
        on_progress=on_progress,
    )


def draft_path(model_path: Path, options: AppOptions, settings: Settings) -> Path | None:
    """Where the draft model lies. The bundled guide, which is as small as any and of a family of its own, has none
    unless this start was given both.
    """
    both = options.draft_model is not None and options.model_path == model_path
    if paths.is_bundled(model_path) and not both:
        return None
    if options.draft_model is not None or settings.draft_model is None:
        return options.draft_model
    return paths.expanded(settings.draft_model)


def _fitting_draft(model_path: Path, options: AppOptions, settings: Settings) -> tuple[Path | None, str]:
    """The draft model, or none and why: one that was not typed with this model is left out where it does not fit."""
    wanted = draft_path(model_path, options, settings)
    if wanted is None or (options.draft_model is not None and options.model_path == model_path):
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

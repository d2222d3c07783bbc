"""What the command line asked for, as plain frozen values. Shared by the app and by pipe mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from exlchat.app.runtime.cache_sizes import CacheSizes
from exlchat.chat.presets.wishes import SamplingWishes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.prompt.context import ContextPolicy
    from exlchat.config.schema import KvCacheChoice

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class AppOptions:
    """One start of the program. `None` means that the settings file, then the default, decides.

    Args:
        model_path: the model directory, already resolved; `None` when there is none at all (the app then says so).
        device: where the model runs; `auto` takes the GPU when there is one.
        context: the longest prompt plus answer, in tokens.
        kv_cache: precision of keys and values; `auto` is fp16 on a GPU and fp32 on the CPU.
        extension: whether a GPU uses the CUDA kernels; without them it takes the slower plain torch path.
        quantize_head: bits of an output head that the file has in floats.
        system: the system prompt of new conversations.
        template: prompt format by name or file.
        theme: theme of this start only.
        sampling: sampling values and the longest answer that were typed, or are of a preset that was named.
        sampling_sources: where those of them come from that were not typed: "preset wild", by name.
        seed: makes the answers reproducible.
        draft_model: folder of the smaller model that guesses tokens.
        cache_sizes: how much of the cache is kept, where.
        context_policy: what happens when a conversation does not fit into the context.
        continue_last: open the most recent conversation.
        persona: who speaks in new conversations; its wishes are already in the other values.
        notices: lines to show once at the start, such as "the model used last is gone".
    """

    model_path: Path | None
    device: DeviceChoice = "auto"
    context: int | None = None
    kv_cache: KvCacheChoice | None = None
    extension: bool | None = None
    quantize_head: int | None = None
    system: str | None = None
    template: str | None = None
    theme: str | None = None
    sampling: SamplingWishes = field(default_factory=SamplingWishes)
    sampling_sources: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    draft_model: Path | None = None
    cache_sizes: CacheSizes = field(default_factory=CacheSizes)
    context_policy: ContextPolicy | None = None
    continue_last: bool = False
    persona: FrozenPersona | None = None
    notices: tuple[str, ...] = ()

"""How many layers have their weights in the machine's memory, because the cards have no room for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from exlchat.engine.cards.room import PartBytes, Room
from exlchat.engine.kv.budget import CachePlan, CacheWishes, bytes_of_layers, suffices
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.kv_formats import PAGE_TOKENS, CacheKind
from exlchat.llm.info import ModelError

# Tokens of the context that layers make room for where none was asked for: each that moves makes answers slower.
_CONTEXT = 8192


def with_host_layers(
    spec: ModelSpec,
    kind: CacheKind,
    wishes: CacheWishes,
    room: Room,
    *,
    wanted: int | None,
    memory: Callable[[], int],
) -> Room:
    """The same room with so many layers in the machine's memory as are wanted, else with as few as it takes.

    A model that fits the cards, if only with the shortest context, has none there unless they are wanted: whoever asks
    for a longer one than there is room for is told so, instead of getting answers at a tenth of the speed.

    Args:
        wanted: more than there are are all.
        memory: bytes of the machine's memory that weights may take; asked where it matters.

    Raises:
        ModelError: so many do not fit there.
    """
    if wanted is not None:
        count = min(wanted, spec.num_layers)
        _check(count, room.weights, memory)
        return replace(room, hosted=count)
    if room.fits(bytes_of_layers(spec, kind, CachePlan(PAGE_TOKENS, PAGE_TOKENS))):
        return room
    free = memory()
    most = max(count for count in range(len(room.weights.movable) + 1) if room.weights.hosted(count) <= free)
    context = wishes.context or min(spec.max_position_embeddings, _CONTEXT)
    some = (replace(room, hosted=count) for count in range(1, most + 1))
    enough = (one for one in some if suffices(spec, kind, replace(wishes, context=context), one))
    return next(enough, replace(room, hosted=most))


def host_notice(transformer: Transformer) -> str | None:
    """In a line what lies in the machine's memory, and how fast that can be; `None` where nothing does."""
    if not transformer.hosts:
        return None
    layers, hosted = transformer.spec.num_layers, transformer.split.hosted
    what = "layers" if transformer.spec.experts is None else "layers have experts that"
    read, rate = transformer.hosted_bytes_per_token, min(host.rate for host in transformer.hosts)
    return (
        f"{hosted} of {layers} {what} lie in the machine's memory, of which a token reads {_gigabytes(read)} at "
        f"{rate / 1e9:.1f} GB/s: at most {rate / read:,.{0 if rate >= 10 * read else 1}f} tokens a second; fewer "
        "lie there with fewer bits, a shorter --context or a smaller --kv-cache"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _check(count: int, weights: PartBytes, memory: Callable[[], int]) -> None:
    needed = weights.hosted(count)
    if needed and needed > (free := memory()):
        raise ModelError(
            f"--host-layers {count} takes {needed / 2**30:.1f} GiB of the machine's memory, which has "
            f"{free / 2**30:.1f} GiB for them; take fewer"
        )

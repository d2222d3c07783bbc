"""A cache that grows: layer by layer, and as it was where memory is short."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from exlchat.engine.events import ModelError
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.kv_layer import LayerStore, make_layer
from exlchat.ext.kv_formats import CacheKind
from tests.engine.test_kv_cache import CPU, spec

Fits = Callable[[int], bool]
"""Whether there is memory for one more layer of so many bytes."""


def cache_of(tokens: int, layers: int) -> KVCache:
    """Holds that many tokens, all of them random."""
    sizes = spec(32, layers)
    cache = KVCache(sizes, "fp16", torch.float16, CPU, 10_000)
    cache.reserve(tokens)
    for layer in range(layers):
        cache.append(layer, 0, *torch.randn(2, sizes.num_kv_heads, tokens, 32).half())
    cache.ids = list(range(tokens))
    return cache


def bytes_of(cache: KVCache, layers: int, tokens: int) -> int:
    """Of one layer with that many tokens."""
    return cache.bytes_per_token // layers * tokens


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fits], None]:
    """Lets layers be made only where they fit."""

    def set_limit(fits: Fits) -> None:
        def limited(kind: CacheKind, kv_heads: int, capacity: int, head_dim: int, device: torch.device) -> LayerStore:
            layer = make_layer(kind, kv_heads, capacity, head_dim, device)
            if not fits(sum(part.nbytes for part in layer.parts)):
                raise torch.OutOfMemoryError
            return layer

        monkeypatch.setattr("exlchat.engine.kv_cache.make_layer", limited)

    return set_limit


def stored(cache: KVCache, layers: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of every layer."""
    nothing = torch.zeros(2, 0, 32).half()
    return [cache.append(layer, len(cache), nothing, nothing) for layer in range(layers)]


def test_no_more_than_one_layer_is_held_twice(limit: Callable[[Fits], None]) -> None:
    layers = 3
    cache, taken = cache_of(1_024, layers), []

    def note(_size: int) -> bool:
        taken.append(cache.bytes)
        return True

    limit(note)
    layer, moves = bytes_of(cache, layers, 1_024), cache.moves
    cache.reserve(2_048)
    assert taken == [layer * (layers + grown) for grown in range(layers)]
    assert cache.moves == moves + layers


def test_a_cache_that_cannot_double_grows_as_it_can_or_says_what_it_needs(
    limit: Callable[[Fits], None],
) -> None:
    cache = cache_of(2_000, 2)
    before = [tuple(part.clone() for part in parts) for parts in stored(cache, 2)]
    most = bytes_of(cache, 2, 3_000)
    limit(lambda size: size <= most or cache.bytes <= 2_304 * cache.bytes_per_token)  # one large layer

    def check(capacity: int) -> None:
        """Every layer has that much, no more, and what was stored."""
        assert cache.capacity == capacity
        assert cache.bytes == capacity * cache.bytes_per_token
        for found, wanted in zip(stored(cache, 2), before, strict=True):
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))

    cache.reserve(2_100)
    check(2_304)
    with pytest.raises(ModelError, match=r"a cache of 5,000 tokens needs .* GiB are free; start a new conversation"):
        cache.reserve(5_000)
    check(2_304)


def test_room_for_one_layer_twice_is_enough(limit: Callable[[Fits], None]) -> None:
    layers, wanted = 8, 6_144

    def grow(free: int) -> KVCache:
        """A cache of 4,096 tokens that wants more, with so many bytes free."""
        limit(lambda _size: True)
        cache = cache_of(4_096, layers)
        most = cache.bytes + free
        limit(lambda size: cache.bytes + size <= most)
        cache.reserve(wanted)
        return cache

    sizes = cache_of(0, layers)
    layer = bytes_of(sizes, layers, 4_096)
    # What seven layers grow by, and the eighth beside its old self.
    enough = 7 * layer // 2 + bytes_of(sizes, layers, wanted)
    for free in range(enough, enough + 8 * layer, layer // 3):
        assert grow(free).capacity >= wanted
    with pytest.raises(ModelError, match="GiB more than the present one"):
        grow(enough - 1)


def test_layers_that_cannot_even_shrink_again_leave_what_all_of_them_have(limit: Callable[[Fits], None]) -> None:
    cache, left = cache_of(1_000, 4), iter((True, True))
    limit(lambda _size: next(left, False))
    with pytest.raises(ModelError):
        cache.reserve(5_000)
    assert cache.capacity == 1_024
    limit(lambda _size: True)
    cache.reserve(1_500)
    assert cache.capacity >= 1_500


def test_a_failing_device_is_not_called_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(spec(32), "fp16", torch.float16, CPU, 10_000)

    def fail(*_arguments: object) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(LayerStore, "take", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        cache.reserve(1_000)

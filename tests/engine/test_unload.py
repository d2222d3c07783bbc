"""A model that is unloaded leaves nothing behind, and neither does one whose loading failed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from exlchat.engine import GenerationRequest, LoadProgress, load
from exlchat.engine.layers.transformer import Transformer
from exlchat.paths import bundled_model
from tests.random_models import save_random_llama


def living() -> int:
    gc.collect()
    return sum(isinstance(one, Transformer) for one in gc.get_objects())


def test_unloading_drops_weights_and_cache(tmp_path: Path) -> None:
    before = living()
    engine = load(bundled_model(), device="cpu", page_folder=tmp_path, page_bytes=1 << 24)
    list(engine.generate(GenerationRequest(engine.encode("hello"), max_new_tokens=3)))
    cache = weakref.ref(engine._parts.cache)
    assert living() == before + 1
    engine.unload()
    assert living() == before
    assert cache() is None
    assert engine.info.name == "guide"


def test_a_load_that_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    before = living()

    def give_up(progress: LoadProgress) -> None:
        if progress.done == progress.total:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        load(tmp_path, device="cpu", on_progress=give_up)
    assert living() == before

"""Two models for all tests of the server: one that answers, and one that never ends by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exlchat import engine, paths
from exlchat.llm.port import Engine
from tests.endless_model import save_endless_llama
from tests.server.served import Served, serving


@pytest.fixture(scope="module")
def guide_engine() -> Iterator[Engine]:
    loaded = engine.load(paths.bundled_model(), device="cpu", kv_cache="fp32", bundled=True)
    yield loaded
    loaded.unload()


@pytest.fixture(scope="module")
def guide(guide_engine: Engine) -> Iterator[Served]:
    """The bundled model, greedy where a request does not say."""
    with serving(guide_engine) as served:
        yield served


@pytest.fixture(scope="module")
def endless_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = save_endless_llama(tmp_path_factory.mktemp("models") / "endless")
    loaded = engine.load(path, device="cpu", kv_cache="fp32", max_seq_len=8192, cache_tokens=65_536, bundled=True)
    yield loaded
    loaded.unload()


@pytest.fixture(scope="module")
def endless(endless_engine: Engine) -> Iterator[Served]:
    """Answers whose end is cancelled, or the context's."""
    with serving(endless_engine, name="endless") as served:
        yield served

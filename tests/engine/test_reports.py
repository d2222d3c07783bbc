"""What an engine says of its cache and of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.engine import GenerationRequest, LocalEngine, load
from exlchat.paths import bundled_model
from tests.engine.test_prefix_reuse import SYSTEM, ids


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return load(bundled_model(), device="cpu", max_seq_len=2048)


def answer(engine: LocalEngine, prompt: list[int], owner: str) -> int:
    """Asks for three tokens; how many of them, with the prompt's, the cache holds then."""
    events = list(engine.generate(GenerationRequest(prompt, max_new_tokens=3, owner=owner)))
    new = events[-1].stats.new_tokens  # type: ignore[union-attr]
    return len(prompt) + max(new - 1, 0)


def test_kept_tokens_are_those_that_can_be_found_and_shared_pages_have_several_owners(engine: LocalEngine) -> None:
    assert (engine.cache_report().kept_tokens, engine.cache_report().shared) == (0, 0)
    first = answer(engine, SYSTEM + ids(1, 40), "one")
    report = engine.cache_report()
    assert abs(report.kept_tokens - first) <= 1
    assert report.shared == 0
    answer(engine, SYSTEM + ids(2, 40), "two")
    report = engine.cache_report()
    # The first page is one of both; behind it each has a page of its own, with what stood there before copied.
    assert report.shared == 1
    assert sum(pages for _, pages in report.owners) == report.running + report.idle + report.shared
    assert 256 + 2 * (44 + 40) <= report.kept_tokens <= 256 + 2 * (44 + 40 + 3)


def test_memory_on_the_cpu_is_that_of_model_and_program(engine: LocalEngine) -> None:
    memory, held = engine.memory_report(), engine.footprint
    assert (memory.weights, memory.cache) == (held.weights, held.cache)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
    assert memory.program == pytest.approx(resident, rel=0.1)
    assert memory.cards == ()

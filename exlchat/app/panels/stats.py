"""What the statistics panel says: the last answer, memory, and the cache in short. No terminal library here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.generation_settings import drawn_line
from exlchat.app.panels.cache import size_text
from exlchat.app.panels.figures import drafted_line
from exlchat.chat.answer_option_values import ANSWER_OPTIONS, shown, usual
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from exlchat.app.runtime.requests import EngineFigures
    from exlchat.chat.model import AnswerRecord, Message
    from exlchat.llm.info import CacheReport, MemoryReport

_MODEL_CELLS = 60


def answer_rows(branch: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Left and right side of each row about the newest answer that has figures; a heading has an empty right side."""
    yield "Last answer", ""
    record = next((one.record for one in reversed(branch) if one.record is not None and one.record.stats), None)
    if record is None:
        yield "Figures", "none of an answer in this conversation yet"
    else:
        yield from _record_rows(record)


def rates(branch: Sequence[Message]) -> list[float]:
    """Tokens per second of the answers of a branch that have figures, oldest first."""
    all_stats = (one.record.stats for one in branch if one.record is not None)
    return [stats.tokens_per_second for stats in all_stats if stats is not None and stats.tokens_per_second]


def rates_line(found: Sequence[float]) -> str:
    if not found:
        return "No answer here has a rate yet"
    if len(found) == 1:
        return f"1 answer, {found[0]:.1f} tok/s"
    return f"{len(found)} answers, {min(found):.1f} to {max(found):.1f} tok/s, the last {found[-1]:.1f}"


def growing_line(tokens: int, rate: float | None, *, elsewhere: bool) -> str:
    """How far the answer is that is being written; `elsewhere` is in another conversation than the open one."""
    where = "In another conversation: " if elsewhere else ""
    if not tokens:
        return f"{where}the prompt is being read"
    return f"{where}{tokens:,} tokens so far" + ("" if rate is None else f", {rate:.1f} tok/s")


def engine_rows(figures: EngineFigures) -> Iterator[tuple[str, str]]:
    """Rows about memory and the cache."""
    if figures.memory is not None:
        yield "Memory", ""
        yield from _memory_rows(figures.memory)
    if figures.cache is not None:
        yield "Cache", ""
        yield from _cache_rows(figures.cache)


def _record_rows(record: AnswerRecord) -> Iterator[tuple[str, str]]:
    stats = record.stats
    assert stats is not None
    read = stats.prompt_tokens - stats.cached_tokens
    reading = f", {read / stats.prefill_seconds:,.0f} tok/s" if read > 0 and stats.prefill_seconds > 0 else ""
    yield "Model", one_line(record.model, _MODEL_CELLS)
    yield "Template", one_line(record.template, _MODEL_CELLS)
    yield "Prompt", f"{stats.prompt_tokens:,} tokens, {stats.cached_tokens:,} cached, {read:,} read"
    yield "First", f"{stats.time_to_first_token:.2f} s to the first token"
    yield "Reading", f"{stats.prefill_seconds:.2f} s{reading}"
    yield "Writing", f"{stats.new_tokens:,} tokens in {stats.decode_seconds:.2f} s, {stats.tokens_per_second:.1f} tok/s"
    if drafted := drafted_line(stats):
        yield "Drafted", drafted
    if stats.rewound:
        yield "Rewound", f"{stats.rewound:,} tokens, which led to a banned text"
    yield "Sampling", drawn_line(record.sampling)
    for name in ANSWER_OPTIONS:
        if getattr(record.speech, name) != usual(name):
            yield "Asked for", f"{name} {shown(name, getattr(record.speech, name))}"
    yield "Seed", str(stats.seed)
    yield "Path", stats.decode_path
    if record.finish_reason is not None:
        yield "Ended by", record.finish_reason.replace("_", " ")


def _memory_rows(memory: MemoryReport) -> Iterator[tuple[str, str]]:
    for card in memory.cards:
        used = f"{size_text(card.used)} of {size_text(card.total)} used by all programs ({card.used / card.total:.0%})"
        if len(memory.cards) == 1:
            yield "VRAM", used
        else:
            yield card.name, f"{'a part of all' if memory.together else card.layers} layers; {used}"
    if memory.host_layers:
        yield "Host", f"{memory.host_layers} layers; {size_text(memory.hosted)} of the weights, which cards read there"
    yield "Model", f"weights {size_text(memory.weights)}, cache {size_text(memory.cache)}"
    yield "Program", f"{size_text(memory.program)} of the machine's memory"


def _cache_rows(cache: CacheReport) -> Iterator[tuple[str, str]]:
    used = cache.running + cache.idle
    shared = f", {cache.shared:,} of them shared" if cache.shared else ""
    yield "Pages", f"{used:,} used{shared}, {cache.pages - used:,} free"
    yield "Kept", f"{cache.kept_tokens:,} tokens of {cache.pages * cache.page_tokens:,}"
    yield (
        "Saved",
        f"{cache.found_tokens:,} of {cache.prompt_tokens:,} prompt tokens not read again ({cache.hit_rate:.0%})",
    )

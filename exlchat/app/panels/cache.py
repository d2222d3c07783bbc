"""What is said about the cache: rows for the panel, lines about costs. No terminal library here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.chat.prompt.cost import PromptCost
    from exlchat.llm.info import CacheReport, DiskReport

_MOST_OWNERS = 12
_TITLE_CELLS = 48


def cache_rows(report: CacheReport, titles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Left and right side of each row; headings have an empty right side.

    Args:
        titles: of conversations by id; pages of others belong to what was deleted or only asked.
    """
    used = report.running + report.idle
    yield "In memory", ""
    yield "Pages", f"{used:,} of {report.pages:,} taken, {report.running:,} of them for the last conversation"
    yield "Tokens", f"room for {report.pages * report.page_tokens:,}, {report.page_tokens} a page"
    yield (
        "Memory",
        f"{size_text(report.pages * report.page_bytes)}, {report.kind}, {size_text(report.page_bytes)} a page",
    )
    yield "Reused", f"{report.found_tokens:,} of {report.prompt_tokens:,} prompt tokens ({report.hit_rate:.0%})"
    yield "Evicted", f"{report.evictions:,} pages made room for others"
    if report.owners:
        yield "Used by", ""
        for owner, pages in report.owners[:_MOST_OWNERS]:
            title = one_line(titles.get(owner, "not listed any more"), _TITLE_CELLS)
            yield title, f"{pages:,} page{'s' if pages > 1 else ''}"
        if len(report.owners) > _MOST_OWNERS:
            yield "…", f"and {len(report.owners) - _MOST_OWNERS:,} more"
    yield "On disk", ""
    yield from _disk_rows(report.disk)


def cache_line(report: CacheReport) -> str:
    return (
        f"Cache: {report.running + report.idle:,} of {report.pages:,} pages taken, {report.found_tokens:,} of "
        f"{report.prompt_tokens:,} prompt tokens reused ({report.hit_rate:.0%}); /cache shows more"
    )


def cost_line(cost: PromptCost, of_what: str) -> str:
    """How much reading something again would cost.

    Args:
        of_what: for the beginning of a sentence: "This conversation".
    """
    if not cost.prompt_tokens:
        return f"{of_what} has nothing to read yet"
    return (
        f"{of_what} has {cost.prompt_tokens:,} tokens: {cost.cached_tokens:,} are cached, "
        f"{cost.new_tokens:,} would be read anew"
    )


def _disk_rows(disk: DiskReport | None) -> Iterator[tuple[str, str]]:
    if disk is None:
        yield "Nothing", "is kept for later starts (--disk-gb or disk_gb)"
        return
    yield "Files", f"{disk.files:,} of all models, {size_text(disk.bytes)} of {size_text(disk.most_bytes)}"
    yield "This run", f"{disk.written:,} written, {disk.restored_tokens:,} tokens came back"
    if disk.damaged:
        yield "Dropped", f"{disk.damaged:,} damaged files"
    if disk.skipped:
        yield "Skipped", f"{disk.skipped:,} page{'s' if disk.skipped > 1 else ''} not written"
    if disk.trouble:
        yield "Trouble", disk.trouble


def size_text(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 2**10:,.1f} KiB"

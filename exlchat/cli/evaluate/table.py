"""A report as the table of `exlchat evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

from exlchat.engine.evaluate.measures import CONFIDENCES
from exlchat.engine.evaluate.run import Entry, Report

_COMPARED = ("model", "format", "MB", "cache", "perplexity", "change", "divergence", "+-", "99 %", "same", "sure", "dp")
_ALONE = ("model", "format", "MB", "cache", "perplexity")
_ABOUT = """divergence: of the reference from the model, nats a token, and its standard error;
99 %: what 99 of 100 places stay below; same: places where both find the same
token likeliest; sure: of those where the reference gives it more than a half;
dp: root mean square of the difference in the probability of the token that comes"""

_SURE = "divergence by how sure the reference is of its likeliest token"
_BINS = (f"to {CONFIDENCES[0]}", *(f"to {bound}" for bound in CONFIDENCES[1:]), "above")


def render(report: Report) -> list[str]:
    """Lines, the smallest file first."""
    heads = _ALONE if report.reference is None else _COMPARED
    lines = [f"{report.windows} windows of {report.length:,} tokens", ""]
    lines += _table([heads, *(_row(entry) for entry in report.entries)], left=(0, 1, 3))
    if report.reference is None:
        return lines
    sure = [(entry.model.name, entry.kv_cache or "-", *_by_confidence(entry)) for entry in report.entries]
    by_confidence = _table([("model", "cache", *_BINS), *sure], left=(0, 1))
    return [*lines, "", *_ABOUT.splitlines(), "", _SURE, "", *by_confidence]


def _table(rows: Sequence[Sequence[str]], *, left: Sequence[int]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _by_confidence(entry: Entry) -> list[str]:
    return ["-" if value is None else f"{value:.4f}" for value in entry.figures.by_confidence]


def _row(entry: Entry) -> tuple[str, ...]:
    figures = entry.figures
    named = (entry.model.name, entry.format, f"{entry.bytes / 1e6:,.1f}", entry.kv_cache or "-")
    if figures.divergence is None or figures.log_ratio is None:
        return (*named, f"{figures.perplexity:.3f}")
    return (
        *named,
        f"{figures.perplexity:.3f}",
        f"{100 * figures.log_ratio.mean:+.2f} %",
        f"{figures.divergence.mean:.4f}",
        "-" if figures.divergence.error is None else f"{figures.divergence.error:.4f}",
        f"{figures.quantiles[2]:.3f}",
        f"{100 * figures.same:.1f} %",
        f"{100 * figures.same_sure:.1f} %",
        f"{100 * figures.probability_error:.2f} %",
    )

"""A report as the table of `exlchat evaluate`."""

from __future__ import annotations

from exlchat.engine.evaluate.run import Entry, Report

_COMPARED = ("model", "format", "MB", "cache", "perplexity", "change", "divergence", "+-", "99 %", "same", "sure", "dp")
_ALONE = ("model", "format", "MB", "cache", "perplexity")
_ABOUT = """divergence: of the reference from the model, nats a token, and its standard error;
99 %: what 99 of 100 places stay below; same: places where both find the same
token likeliest; sure: of those where the reference gives it more than a half;
dp: root mean square of the difference in the probability of the token that comes"""


def render(report: Report) -> list[str]:
    """Lines, the smallest file first."""
    heads = _ALONE if report.reference is None else _COMPARED
    rows = [heads, *(_row(entry) for entry in report.entries)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(heads))]
    lines = [f"{report.windows} windows of {report.length:,} tokens", ""]
    for row in rows:
        cells = [
            cell.ljust(width) if place in (0, 1, 3) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines if report.reference is None else [*lines, "", *_ABOUT.splitlines()]


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

"""Advice as the tables of `exlchat convert --advise`."""

from __future__ import annotations

from collections.abc import Sequence

from exlchat.engine.convert.advice import Advice, Cache, Cell

_SHORTEST = 512
"""Tokens; a shorter context is of no use."""


def render(advice: Advice, name: str, command: str) -> list[str]:
    """Lines.

    Args:
        name: of the model.
        command: what makes a file for this card; the kind of cache is still to be added.
    """
    kinds = [cache.kind for cache in advice.caches]
    lines = [f"{name} on a card with {_size(advice.card)} free, context {advice.context:,}", ""]
    rows = [
        ["bits", "file", *kinds],
        *(
            [f"{width.bits:g}", _size(width.file), *(_need(cell, advice) for cell in cells)]
            for width, cells in zip(advice.widths, advice.cells, strict=True)
        ),
        ["most bits that fit", "", *(_most(cache) for cache in advice.caches)],
    ]
    lines += [
        *_table(rows),
        f"of the card: weights, the cache of one conversation, and {_size(advice.working)} to work in;",
        "a number of tokens: too large, the longest context that would fit",
        "",
        *_losses(advice),
    ]
    best = advice.best
    if best is not None and best.widest is not None:
        lines.append(f"what fits and loses least: {best.widest.bits:g} bits with {best.kind}")
        lines.append(f"  {command} --kv-cache {best.kind}")
    elif all(cache.widest is None for cache in advice.caches):
        lines.append("nothing fits: take a smaller model or a shorter context")
    return lines


def _losses(advice: Advice) -> list[str]:
    """What is known of them."""
    about = ["divergence, nats a token: predicted for bits, measured for caches on the source, and their sum"]
    rows = [["bits", "loses", *(cache.kind for cache in advice.caches)]]
    rows.append(["", "", *("-" if cache.loss is None else f"+{cache.loss:.4f}" for cache in advice.caches)])
    for width, cells in zip(advice.widths, advice.cells, strict=True):
        if width.loss is not None:
            both = ("-" if cell.loss is None else f"{cell.loss:.4f}" for cell in cells)
            rows.append([f"{width.bits:g}", f"{width.loss:.4f}", *both])
    if len(rows) == 2:
        return [
            "What is lost is not known, so only bytes are shown: a conversion measures it, and keeps it",
            "in its work folder (--work).",
            "",
        ]
    left = [f"{width.bits:g}" for width in advice.widths if width.loss is None]
    if left:
        about.append(f"{', '.join(left)} bits are not in the tables of that conversion")
    return [*_table(rows), *about, ""]


def _need(cell: Cell, advice: Advice) -> str:
    if cell.needed <= advice.card:
        return _size(cell.needed)
    return f"{cell.context:,}" if cell.context >= _SHORTEST else "-"


def _most(cache: Cache) -> str:
    return "-" if cache.widest is None else f"{cache.widest.bits:g}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"

"""Divergence against size as an SVG, by pygal, which only `--plot` needs."""

from __future__ import annotations

import pygal
from pygal.style import CleanStyle

from exlchat.cli.bench.plot import without_scripts
from exlchat.engine.evaluate.run import Report


def draw(report: Report) -> str:
    """One line for each kind of cache, a point for each model; of models without a reference their perplexity."""
    compared = report.reference is not None
    chart = pygal.XY(
        # pygal's own script would come from another server.
        js=[],
        style=CleanStyle(font_family="sans-serif"),
        title=f"{'divergence from ' + report.reference.name if report.reference else 'perplexity'}, by size",
        x_title="GB",
        y_title="nats a token" if compared else "perplexity",
        logarithmic=compared,
        legend_at_bottom=True,
    )
    for kv_cache in dict.fromkeys(entry.kv_cache for entry in report.entries):
        points = []
        for entry in report.entries:
            figures = entry.figures
            value = figures.perplexity if figures.divergence is None else figures.divergence.mean
            if entry.kv_cache == kv_cache and value > 0:
                points.append({"value": (entry.bytes / 1e9, value), "label": entry.model.name})
        chart.add("cache as computed" if kv_cache is None else f"{kv_cache} cache", points)
    return without_scripts(chart.render_tree())

"""A benchmark's decode rates as an SVG, by pygal, which only `--plot` needs."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pygal
from pygal.style import CleanStyle

from exlchat.engine.bench.figures import Figure, Report


def draw(report: Report) -> str:
    """One bar for each context and type of cache, and beside it what the copy bandwidth would allow."""
    decoded = [figure for figure in report.figures if figure.kind == "decode"]
    contexts = sorted({figure.tokens for figure in decoded})
    caches = list(dict.fromkeys(figure.kv_cache for figure in decoded))
    chart = _chart(pygal.Bar, report, "tokens in the cache", "tokens a second")
    chart.x_labels = [f"{context:,}" for context in contexts]
    for cache in caches:
        figures = [report.find("decode", context, cache) for context in contexts]
        chart.add(f"{cache} cache", [None if figure is None else figure.median for figure in figures])
        chart.add(f"{cache} cache at copy speed", [_limit(figure, report) for figure in figures])
    return without_scripts(chart.render_tree())


def draw_batches(report: Report) -> str:
    """Tokens a second by rows, a line for each context and type of cache, and one of what the copy bandwidth allows."""
    chart = _chart(pygal.Line, report, "answers side by side", "tokens a second of all", logarithmic=True)
    rows = sorted({figure.rows for figure in report.figures})
    chart.x_labels = [f"{many:,}" for many in rows]
    for kind, context in dict.fromkeys((figure.kv_cache, figure.tokens) for figure in report.figures):
        figures = {one.rows: one for one in report.figures if (one.kv_cache, one.tokens) == (kind, context)}
        name = f"{kind} cache, {context:,} tokens a row"
        chart.add(name, [figures[many].median if many in figures else None for many in rows])
        chart.add(f"{name}, at copy speed", [_limit(figures.get(many), report) for many in rows])
    return without_scripts(chart.render_tree())


def _chart(
    kind: Callable[..., pygal.Graph], report: Report, x_title: str, y_title: str, *, logarithmic: bool = False
) -> pygal.Graph:
    return kind(
        # pygal's own script would come from another server.
        js=[],
        style=CleanStyle(font_family="sans-serif"),
        title=_title(report),
        x_title=x_title,
        y_title=y_title,
        legend_at_bottom=True,
        logarithmic=logarithmic,
        value_formatter=lambda value: f"{value:,.0f}",
    )


def without_scripts(root: ElementTree.Element) -> str:
    """The drawing alone: pygal puts the settings of its script into every file."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "script":
                parent.remove(child)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _title(report: Report) -> str:
    model = "" if report.model is None else f"{report.model.name}, {report.model.quantization}"
    return model if report.setting is None else f"{model} on {report.setting.device_name}"


def _limit(figure: Figure | None, report: Report) -> float | None:
    if figure is None or figure.bytes_per_token is None or report.setting is None:
        return None
    return report.setting.copy_rate / figure.bytes_per_token

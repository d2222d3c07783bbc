"""A benchmark's decode rates as an SVG, by pygal, which only `--plot` needs."""

from __future__ import annotations

from xml.etree import ElementTree

import pygal
from pygal.style import CleanStyle

from exlchat.engine.bench.figures import Figure, Report


def draw(report: Report) -> str:
    """One bar for each context and type of cache, and beside it what the copy bandwidth would allow."""
    decoded = [figure for figure in report.figures if figure.kind == "decode"]
    contexts = sorted({figure.tokens for figure in decoded})
    caches = list(dict.fromkeys(figure.kv_cache for figure in decoded))
    chart = pygal.Bar(
        # pygal's own script would come from another server.
        js=[],
        style=CleanStyle(font_family="sans-serif"),
        title=_title(report),
        x_title="tokens in the cache",
        y_title="tokens a second",
        legend_at_bottom=True,
        value_formatter=lambda value: f"{value:,.0f}",
    )
    chart.x_labels = [f"{context:,}" for context in contexts]
    for cache in caches:
        figures = [report.find("decode", context, cache) for context in contexts]
        chart.add(f"{cache} cache", [None if figure is None else figure.median for figure in figures])
        chart.add(f"{cache} cache at copy speed", [_limit(figure, report) for figure in figures])
    return without_scripts(chart.render_tree())


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

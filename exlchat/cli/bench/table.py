"""A benchmark's report as plain text, 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from exlchat.app.generation_settings import drawn_line
from exlchat.engine.bench.figures import Figure, Memory, Report, RowRoom
from exlchat.untrusted.text import one_line

_FIGURES = (26, 8, 15, 9, 10, 12)
_ORDER = {"load": 0, "prefill": 1, "decode": 2, "sampled": 2, "turn": 3}
_BATCHES = (22, 6, 16, 14, 10, 12)
_NEARLY = 0.95
_WIDTH = 80
_MEMORY = (18, 11, 10, 11, 15, 15)


def render(report: Report) -> str:
    if report.settings.rows:
        return _render_batches(report)
    parts = [
        "\n".join(_headline(report)),
        _table(
            _FIGURES,
            ("what", "tokens", "median", "spread", "GB/s", "of copy"),
            [_figure(figure, report) for figure in sorted(report.figures, key=lambda figure: _ORDER[figure.kind])],
        ),
    ]
    if report.memory:
        names = ("memory", "weights", "cache", "a token", "peak loading", "peak running")
        parts.append(_table(_MEMORY, names, [_memory(memory) for memory in report.memory]))
    parts.append("\n".join(_notes(report)))
    return "\n\n".join(parts) + "\n"


def _render_batches(report: Report) -> str:
    names = ("cache, tokens a row", "rows", "all", "slowest", "spread", "of copy")
    parts = [
        "\n".join(_headline(report)),
        _table(_BATCHES, names, [_batch(figure, report) for figure in report.figures]),
        "\n".join(
            [
                *map(_advice, _by_room(report)),
                "Every second row is drawn with all samplers, the others greedily. Rows that",
                "do not run at once wait for others. Spread: half the range over the median.",
                *(f"Not measured: {reason}." for reason in report.skipped),
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _batch(figure: Figure, report: Report) -> tuple[str, ...]:
    share = report.of_copy(figure)
    slowest = "" if figure.slowest is None else _rate(figure.slowest)
    spread = f"± {figure.spread:.1%}" if len(figure.samples) > 1 else "one run"
    what = f"{figure.kv_cache}, {figure.tokens:,}"
    return what, f"{figure.rows:,}", _rate(figure.median), slowest, spread, "" if share is None else f"{share:.0%}"


def _by_room(report: Report) -> list[tuple[RowRoom, list[Figure]]]:
    return [
        (room, [one for one in report.figures if (one.kv_cache, one.tokens) == (room.kv_cache, room.tokens)])
        for room in report.rooms
    ]


def _advice(of: tuple[RowRoom, list[Figure]]) -> str:
    """How many rows to take, of those that were measured."""
    room, figures = of
    held = f"{room.kv_cache} cache: {room.rows:,} rows of {room.tokens:,} tokens and an answer fit."
    if not figures:
        return held
    best = max(figures, key=lambda one: one.median)
    # More rows that give next to nothing only make each slower.
    enough = next(one for one in figures if one.median >= _NEARLY * best.median)
    slowest = "" if enough.slowest is None else f", {_rate(enough.slowest)} each"
    return f"{held}\nTake {enough.rows:,}: {_rate(enough.median)} in all{slowest}."


def _headline(report: Report) -> list[str]:
    lines = []
    if report.model is not None:
        model = report.model
        name = one_line(model.name)
        lines.append(
            f"{name}: {model.quantization}, {_count(model.parameters)} weights, {model.dtype}, "
            f"context {model.max_seq_len:,}"
        )
        if model.made:
            lines.append("Random weights, made on the device: loading reads no file.")
        for notice in model.notices:
            lines.extend(wrap(f"{notice}.", _WIDTH))
    if report.setting is not None:
        setting = report.setting
        threads = (
            ""
            if setting.device.startswith("cuda")
            else f", {setting.threads} thread{'' if setting.threads == 1 else 's'}"
        )
        lines.append(f"{setting.device}: {setting.device_name}{threads}")
        cuda = f", CUDA {setting.cuda}" if setting.cuda else ""
        lines.append(f"exlchat {setting.exlchat}, torch {setting.torch}{cuda}, Python {setting.python}")
        lines.append(f"Copying large memory reads and writes {setting.copy_rate / 1e9:,.0f} GB/s.")
    return lines


def _figure(figure: Figure, report: Report) -> tuple[str, ...]:
    share = report.of_copy(figure)
    rate = "" if figure.read_rate is None else f"{figure.read_rate / 1e9:,.1f}"
    of_copy = "" if share is None else f"{share:.0%}"
    if figure.kind == "sampled":
        of_greedy = report.sampled_share(figure)
        rate, of_copy = "", "" if of_greedy is None else f"{of_greedy:.1%} *"
    spread = f"± {figure.spread:.1%}" if len(figure.samples) > 1 else "one run"
    tokens = f"{figure.tokens:,}" if figure.tokens else ""
    return _what(figure, report), tokens, _value(figure), spread, rate, of_copy


def _what(figure: Figure, report: Report) -> str:
    match figure.kind:
        case "sampled":
            return "  with samplers *"
        case "turn":
            return f"turn of {report.settings.turn_new}, {figure.kv_cache} cache"
        case _:
            return f"{figure.kind}, {figure.kv_cache} cache"


def _value(figure: Figure) -> str:
    if figure.kind == "load":
        return f"{figure.median:,.2f} s"
    if figure.kind == "turn":
        return f"{figure.median * 1e3:,.1f} ms"
    return _rate(figure.median)


def _rate(rate: float) -> str:
    return f"{rate:,.{0 if rate >= 100 else 1}f} tok/s"


def _memory(memory: Memory) -> tuple[str, ...]:
    footprint = memory.footprint
    return (
        f"{memory.kv_cache} cache",
        _gigabytes(footprint.weights),
        _gigabytes(footprint.cache),
        f"{footprint.cache_per_token / 1024:,.1f} KiB",
        _gigabytes(memory.load_peak),
        _gigabytes(memory.run_peak),
    )


def _notes(report: Report) -> list[str]:
    lines = [_beyond(memory) for memory in report.memory]
    if any(figure.kind == "sampled" for figure in report.figures):
        sampling = report.settings.sampling
        lines.append(f"* {drawn_line(sampling).replace(' · ', ', ').replace('_', '-')}; share of greedy.")
    lines.append("Spread: half the runs' range over their median. Prefill: to the first token.")
    lines.extend(f"Not measured: {reason}." for reason in report.skipped)
    return lines


def _beyond(memory: Memory) -> str:
    extra = f"{memory.kv_cache} cache: {_gigabytes(memory.beyond)} beyond weights and cache"
    if memory.device_used is None:
        return f"{extra}, Python and torch included."
    return f"{extra}; {_gigabytes(memory.device_used)} of the card taken in all."


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number / 1e6:.1f} M"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _table(widths: Sequence[int], names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for cells in (names, *rows):
        first, *others = (
            f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("".join((first, *others)).rstrip())
    lines.insert(1, "-" * sum(widths))
    return "\n".join(lines)

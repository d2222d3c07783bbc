"""The picture of a layer's products in docs/step.md, of the clocks in docs/performance.md.

python -m tools.step_picture
"""

from __future__ import annotations

from pathlib import Path

_DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE = _DOCS / "picture-step.svg"
SECTION = "### Where a product begins"
_TITLES = {1: "one token", 8: "eight tokens"}
_CLOCKS_A_PIXEL, _LEFT, _LANE, _BAR = 180.0, 90, 30, 20
_PHASES = {
    "waits for its slowest block": ("waits for the slowest block before", "#d9d9d9"),
    "until it is ready": ("begins: nothing ran beside the one before", "#f4a582"),
    "x": ("x", "#5e9fd6"),
    "sums of x": ("sums of x", "#2f6fa5"),
    "multiplies": ("multiplies", "#7fbf7b"),
    "neighbour, other warps": ("takes from its neighbour", "#b39ddb"),
    "writes": ("writes", "#e8c547"),
}
_BESIDE = ("asks for its weights while the one before runs", "#eeeeee")


def table(text: str) -> dict[int, list[dict[str, str]]]:
    """Rows of the table of phases, by how many tokens a pass has."""
    lines = iter(text.partition(SECTION)[2].splitlines())
    head = next(line for line in lines if line.startswith("| rows"))
    names = [cell.strip() for cell in head.strip("|").split("|")]
    found: dict[int, list[dict[str, str]]] = {}
    rows = 0
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            break
        cells = dict(zip(names, (cell.strip() for cell in line.strip().strip("|").split("|")), strict=True))
        rows = int(cells["rows"]) if cells["rows"] else rows
        found.setdefault(rows, []).append(cells)
    return found


def drawn(text: str) -> str:
    """SVG: a lane for each product, a panel for each number of tokens, to one scale."""
    parts, top, width = [], 8, 0.0
    for rows, products in table(text).items():
        if rows not in _TITLES:
            continue
        parts.append(_text(8, top + 14, f"A layer's products, {_TITLES[rows]}", weight="bold"))
        top += 24
        end = begun = 0.0
        for product in products:
            parts.append(_text(8, top + 15, product["product"]))
            at = end
            if product["runs beside the one before"] == "yes":
                parts.append(_bar(begun, end, top, _BESIDE[1]))
            begun = end
            for name, (_, colour) in _PHASES.items():
                clocks = _clocks(product[name])
                parts.append(_bar(at, at + clocks, top, colour))
                at += clocks
            end, top = at, top + _LANE
        parts.append(_text(_LEFT, top + 10, f"{end:,.0f} clocks"))
        width, top = max(width, end), top + 24
    for number, (label, colour) in enumerate([_BESIDE, *_PHASES.values()]):
        x, y = _LEFT + number % 2 * 380, top + number // 2 * 20
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour}" stroke="#999"/>')
        parts.append(_text(x + 20, y + 12, label))
    top += (len(_PHASES) + 2) // 2 * 20 + 6
    size = f'width="{_LEFT + width / _CLOCKS_A_PIXEL + 16:.0f}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, ground, *filter(None, parts), "</svg>", ""])


def _clocks(cell: str) -> float:
    return float(cell.replace(",", "")) if cell not in ("", "-") else 0.0


def _bar(start: float, end: float, top: int, colour: str) -> str:
    if end <= start:
        return ""
    x, width = _LEFT + start / _CLOCKS_A_PIXEL, (end - start) / _CLOCKS_A_PIXEL
    place = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
    return f'<rect {place} fill="{colour}" stroke="#999" stroke-width="0.5"/>'


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="#222" font-weight="{weight}">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn((_DOCS / "performance.md").read_text()))

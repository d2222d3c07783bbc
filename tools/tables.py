"""Writes the tables of keys, commands, settings and sampling controls into docs; tests hold them to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exlchat.cli.config.telling import control_rows, key_rows, page_rows
from exlchat.ui.tui.screens.help import help_rows

CONTROLS_HEAD = "| control | group | what it does | allowed | off | to begin with |"
DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    """Replace each table below its heading, or below its first row."""
    sections: dict[str, list[str]] = {}
    for left, right in help_rows():
        if not right:
            rows = sections.setdefault(left, [])
        else:
            named = f"`{left}`" if left.startswith("/") else ", ".join(f"`{key}`" for key in left.split(", "))
            rows.append(f"| {named} | {right} |")
    page = (DOCS / "chat.md").read_text(encoding="utf-8")
    for heading, rows in sections.items():
        page = _replaced(page, f"\n## {heading}\n\n| | |\n|---|---|\n", rows)
    (DOCS / "chat.md").write_text(page, encoding="utf-8")
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    for rows in (list(page_rows()), list(key_rows())):
        page = _replaced(page, f"{rows[0]}\n", rows[1:])
    (DOCS / "settings.md").write_text(page, encoding="utf-8")
    page = (DOCS / "sampling.md").read_text(encoding="utf-8")
    page = _replaced(page, f"{CONTROLS_HEAD}\n|---|---|---|---|---|---|\n", list(control_rows()))
    (DOCS / "sampling.md").write_text(page, encoding="utf-8")


def _replaced(page: str, before: str, rows: Sequence[str]) -> str:
    head, found, rest = page.partition(before)
    if not found:
        raise SystemExit(f"a page of docs has no {before.strip().splitlines()[0]!r}")
    kept = rest.splitlines(keepends=True)
    while kept and kept[0].startswith("|"):
        kept.pop(0)
    return f"{head}{before}{''.join(f'{row}{chr(10)}' for row in rows)}{''.join(kept)}"


if __name__ == "__main__":
    main()

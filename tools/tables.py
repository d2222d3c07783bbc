"""Writes the tables of keys, commands, settings and sampling controls into docs; tests hold them to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from exlchat.app.commands.actions import ACTIONS
from exlchat.chat.presets.control_values import to_text
from exlchat.config.schema import GROUPS, grouped
from exlchat.llm.controls import CONTROLS
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
            rows.append(f"| {doors(left)} | {right} |")
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


def doors(left: str) -> str:
    """Keys and the slash command behind them, as code."""
    keys, slash, usage = left.partition("/")
    found = [key for key in keys.split(", ") if key] + ([f"/{usage}"] if slash else [])
    return ", ".join(f"`{one}`" for one in found)


def _replaced(page: str, before: str, rows: Sequence[str]) -> str:
    head, found, rest = page.partition(before)
    if not found:
        raise SystemExit(f"a page of docs has no {before.strip().splitlines()[0]!r}")
    kept = rest.splitlines(keepends=True)
    while kept and kept[0].startswith("|"):
        kept.pop(0)
    return f"{head}{before}{''.join(f'{row}{chr(10)}' for row in rows)}{''.join(kept)}"


def page_rows() -> Iterator[str]:
    """The rows of the table in docs/settings.md."""
    for group, settings in grouped():
        yield f"| **{group}** | | {GROUPS[group]} | | |"
        for one in settings:
            default = one.unset if one.default is None else f"`{one.shown(one.default)}`"
            beaten = ", ".join(f"`{name}`" for name in one.options)
            about = f"{one.help} It must be {one.kind.what}."
            yield f"| `{one.key}` | {default} | {about} | {one.when} | {beaten} |"


def key_rows() -> Iterator[str]:
    """The rows of the table of actions in docs/settings.md."""
    where = {
        "everywhere": "everywhere",
        "composer": "in the message",
        "message": "on a message",
        "sidebar": "in the sidebar",
    }
    for action in ACTIONS:
        if action.keys:
            yield f"| `{action.id}` | {', '.join(f'`{key}`' for key in action.keys)} | {where[action.place]} |"


def control_rows() -> Iterator[str]:
    """The rows of the table of sampling controls in docs/sampling.md."""
    for name, one in CONTROLS.items():
        numbers = one.kind in ("number", "whole")
        allowed = one.range.removeprefix("a ") if numbers else _LISTS[one.kind]
        off = to_text(name, one.off) if numbers else "the usual one" if one.kind == "order" else _off_list(name)
        usual = "" if one.usual is None else f"`{one.usual:g}`"
        needs = f" With `{one.leader}`." if one.leader else ""
        yield f"| `{name}` | {one.group} | {one.help}{needs} | {allowed} | {off} | {usual} |"


def _off_list(name: str) -> str:
    off = CONTROLS[name].off
    return f"`{to_text(name, off)}`" if off else "none"


_LISTS = {
    "texts": "texts",
    "tokens": "tokens: ids, or texts that are one token",
    "biases": "tokens with numbers from -1000 to 1000",
    "order": "steps: all, or those that come last",
}


if __name__ == "__main__":
    main()

"""Take the pictures of the docs from the real app: `python -m tools.screenshot` all, `... NAME...` some of them.

`... --review FOLDER [NAME...]` takes each at three sizes in a dark theme and a light one, to be looked at. What they
show is in `pictures/scenes.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tools.pictures.drawing import still
from tools.pictures.scenes import PICTURES

DOCS = Path(__file__).parents[1] / "docs"
SIZES = ((80, 24), (120, 40), (200, 50))
THEMES = ("exlchat-dark", "exlchat-light")


def main(names: list[str]) -> int:
    """Take these, or all; say what was written."""
    folder = None
    if names[:1] == ["--review"]:
        folder, names = Path(names[1]), names[2:]
    if unknown := [name for name in names if name not in PICTURES]:
        sys.stderr.write(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}\n")
        return 2
    if folder is not None:
        review(folder, names or list(PICTURES))
        return 0
    for name in names or PICTURES:
        began = time.monotonic()
        one = PICTURES[name]
        drawn = still(asyncio.run(one.rows()), one.title)
        (DOCS / f"{one.file}.svg").write_text(drawn, encoding="utf-8")
        sys.stdout.write(f"{one.file}.svg: {len(drawn) // 1024} KiB in {time.monotonic() - began:.1f} s\n")
    return 0


def review(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        one = PICTURES[name]
        if one.at is None or one.file.startswith(("theme-", "screenshot-")):
            continue
        for size in SIZES:
            for theme in THEMES:
                drawn = still(asyncio.run(one.at(size, theme)), one.title)
                (folder / f"{name}-{size[0]}-{theme.removeprefix('exlchat-')}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

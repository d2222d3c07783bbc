"""Take the pictures of the docs from the real app: `python -m tools.screenshot` all, `... NAME...` some of them.

What they show is in `pictures/scenes.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tools.pictures.drawing import still
from tools.pictures.scenes import PICTURES

DOCS = Path(__file__).parents[1] / "docs"


def main(names: list[str]) -> int:
    """Take these, or all; say what was written."""
    if unknown := [name for name in names if name not in PICTURES]:
        sys.stderr.write(f"there is no picture {unknown[0]}; there are {', '.join(PICTURES)}\n")
        return 2
    for name in names or PICTURES:
        began = time.monotonic()
        one = PICTURES[name]
        drawn = still(asyncio.run(one.rows()), one.title)
        (DOCS / f"{one.file}.svg").write_text(drawn, encoding="utf-8")
        sys.stdout.write(f"{one.file}.svg: {len(drawn) // 1024} KiB in {time.monotonic() - began:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

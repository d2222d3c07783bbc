"""Makes the two texts of `exlchat convert` and `exlchat evaluate` from this repository: `python -m tools.texts`.

Documentation, code and conversations of the guide, all of this program's licence. Whole files go to one of the two, so
that nothing is measured on what it was made with. They are made once and kept: results are compared over years.
"""

from __future__ import annotations

import lzma
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_OUT = _ROOT / "exlchat" / "engine" / "convert" / "texts"
# A tenth of the files, in the order of their names, is held out.
_HELD_OUT = 10
_CODE_CHARACTERS = 1_500_000


def main() -> None:
    held_out: list[str] = []
    kept: list[str] = []
    for kind in (_prose(), _code(), _talk()):
        for number, piece in enumerate(kind):
            (held_out if number % _HELD_OUT == _HELD_OUT - 1 else kept).append(piece)
    _OUT.mkdir(exist_ok=True)
    for name, pieces in (("calibration", kept), ("evaluation", held_out)):
        text = "\n\n".join(_mixed(pieces))
        file = _OUT / f"{name}.txt.xz"
        file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        sys.stdout.write(f"{file.relative_to(_ROOT)}: {len(text):,} characters, {file.stat().st_size:,} bytes\n")


def _prose() -> Iterator[str]:
    for file in [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").glob("*.md"))]:
        yield file.read_text(encoding="utf-8").strip()


def _code() -> Iterator[str]:
    files = sorted((_ROOT / "exlchat").rglob("*.py")) + sorted((_ROOT / "exlchat").rglob("*.cu*"))
    texts = [file.read_text(encoding="utf-8").strip() for file in files]
    texts = [text for text in texts if len(text) > 1500]
    step = max(sum(map(len, texts)) / _CODE_CHARACTERS, 1)
    for number in range(int(len(texts) / step)):
        yield texts[int(number * step)]


def _talk() -> Iterator[str]:
    """Questions and answers, some twenty to a piece."""
    turns: list[str] = []
    for file in sorted((_ROOT / "exlchat" / "app" / "guide" / "facts").glob("*.toml")):
        for fact in tomllib.loads(file.read_text(encoding="utf-8")).get("fact", []):
            # Questions with brackets are patterns.
            questions = [ask for ask in fact.get("asks", []) if "[" not in ask]
            turns += [
                f"User: {ask}\nAssistant: {answer}" for ask, answer in zip(questions, fact["answers"], strict=False)
            ]
    for first in range(0, len(turns), 20):
        yield "\n\n".join(turns[first : first + 20])


def _mixed(pieces: list[str]) -> list[str]:
    """In an order that has all kinds everywhere, the same at each run."""
    return [piece for _, piece in sorted((hash_of(number), piece) for number, piece in enumerate(pieces))]


def hash_of(number: int) -> int:
    """Knuth's multiplicative one."""
    return number * 2654435761 % 2**32


if __name__ == "__main__":
    main()

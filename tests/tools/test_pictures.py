"""The pictures of the docs as they lie there; `python -m tools.screenshot` and `python -m tools.tour` renew them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.pictures.scenes import PICTURES

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted(f"{file}.svg" for file in {"tour", *(one.file for one in PICTURES.values())})


@pytest.mark.parametrize("name", FILES)
def test_a_picture_is_there_and_tells_nothing_of_the_machine_it_was_taken_on(name: str) -> None:
    text = " ".join(ElementTree.fromstring((DOCS / name).read_text(encoding="utf-8")).itertext())
    assert not re.search(r"/tmp|/root|/home/|/work/|Traceback", text)


def test_all_pictures_together_are_small() -> None:
    assert sum((DOCS / name).stat().st_size for name in FILES if name != "tour.svg") < 1_500_000
    assert (DOCS / "tour.svg").stat().st_size < 1_500_000

"""The picture of a step's products is of the clocks that the docs tell."""

from __future__ import annotations

from tools import step_picture

BEFORE = "| rows | product | runs beside the one before | waits for its slowest block | until it is ready |"
TEXT = f"""{step_picture.SECTION}

{BEFORE} x | sums of x | multiplies | neighbour, other warps | writes | all |
|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
| 1 | qkv | yes | 180 | - | 360 | 0 | 1,800 | | 180 | 2,520 |
| | down | no | - | 900 | 0 | 0 | 180 | | | 1,080 |

| another | table |
"""


def test_the_picture_in_the_docs_is_of_their_table() -> None:
    text = (step_picture.PICTURE.parent / "performance.md").read_text()
    assert step_picture.PICTURE.read_text() == step_picture.drawn(text), "run python -m tools.step_picture"


def test_phases_stand_one_behind_the_other_and_products_too() -> None:
    bars = [line for line in step_picture.drawn(TEXT).splitlines() if "stroke-width" in line]
    places = [(float(bar.split('x="')[1].split('"')[0]), float(bar.split('width="')[1].split('"')[0])) for bar in bars]
    assert places == [(90, 1), (91, 2), (93, 10), (103, 1), (104, 5), (109, 1)]

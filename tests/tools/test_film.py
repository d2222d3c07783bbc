"""Frames as an SVG that moves by itself: looked at as a browser does, by its style rules, without one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from rich.segment import Segment
from rich.style import Style

from tools.pictures.cells import Row, Span, row_of
from tools.pictures.drawing import still
from tools.pictures.film import Frame, film

SECONDS = 8.0
SVG = "{http://www.w3.org/2000/svg}"


def row(text: str, color: str = "#ffffff", background: str = "#000000") -> Row:
    return (Span(text.ljust(20), color, background),)


FRAMES = (
    Frame(0.0, (row("$ "), row(""), row("")), "A caption"),
    Frame(0.5, (row("$ exlchat"), row(""), row("")), "A caption"),
    Frame(1.7, (row("hello <b> & 'you'"), row("", background="#202020"), row("$ ")), "Another"),
    Frame(3.3, (row("hello <b> & 'you'"), row("hello <b> & 'you'"), row("")), "Another"),
    Frame(7.9, (row("$ "), row(""), row("")), "A caption"),
)


@dataclass
class Player:
    """A browser for one kind of file: which drawing is in which slot at a time."""

    root: ElementTree.Element
    stops: dict[str, list[tuple[float, float]]]

    def shown(self, at: float) -> list[str]:
        return [self._shown(slot, at) for slot in self.root.findall(f"{SVG}svg")]

    def _shown(self, slot: ElementTree.Element, at: float) -> str:
        strip = slot.find(f"{SVG}g")
        assert strip is not None
        name = strip.attrib["class"].split()[-1]
        moved = [by for percent, by in self.stops.get(name, [(0.0, 0.0)]) if percent <= 100 * at / SECONDS + 1e-9][-1]
        places = {float(use.attrib["y"]): use.attrib["href"].removeprefix("#") for use in strip}
        first = min(places)
        return self.text(places[first - moved])

    def text(self, name: str) -> str:
        drawing = next(one for one in self.root.iter(f"{SVG}g") if one.get("id") == name)
        return "".join(drawing.itertext()).replace("\N{NO-BREAK SPACE}", " ")


def player(drawn: str) -> Player:
    root = ElementTree.fromstring(drawn)
    style = root.findtext(f"{SVG}style")
    assert style is not None
    assert f"{SECONDS:g}s step-end infinite" in style
    stops: dict[str, list[tuple[float, float]]] = {}
    for name, body in re.findall(r"@keyframes (\w+)\{((?:[^{}]+\{[^}]*\})*)\}", style):
        for percents, moved in re.findall(r"([^{}]+)\{transform:translateY\(([-\d.]+)px\)\}", body):
            stops.setdefault(name, []).extend((float(one.rstrip("%")), float(moved)) for one in percents.split(","))
        stops[name].sort()
    return Player(root, stops)


@pytest.fixture
def drawn() -> str:
    return film(FRAMES, SECONDS, title="a <title>", still_at=2.0)


def test_every_frame_is_shown_in_its_time_and_in_no_other(drawn: str) -> None:
    browser = player(drawn)
    ends = [*(frame.at for frame in FRAMES[1:]), SECONDS]
    for frame, end in zip(FRAMES, ends, strict=True):
        expected = [*("".join(span.text for span in one).rstrip() for one in frame.rows), frame.caption]
        for at in (frame.at, (frame.at + end) / 2, end - 0.01):
            assert browser.shown(at) == expected, at


def test_each_distinct_row_is_drawn_once(drawn: str) -> None:
    root = player(drawn).root
    drawings = [ElementTree.tostring(one, encoding="unicode").partition(">")[2] for one in root.findall(f"{SVG}defs/*")]
    assert len(drawings) == len(set(drawings))
    rows = {one for frame in FRAMES for one in frame.rows}
    assert len(drawings) == len(rows) + len({frame.caption for frame in FRAMES})


def test_key_frames_lie_within_the_film_and_each_strip_begins_at_once(drawn: str) -> None:
    stops = player(drawn).stops
    assert stops
    for moves in stops.values():
        percents = [percent for percent, _ in moves]
        assert percents[0] == 0
        assert percents == sorted(set(percents))
        assert percents[-1] < 100


def test_a_film_fetches_nothing_and_runs_nothing(drawn: str) -> None:
    assert not re.search(r"<script|url\(|@import|@font-face|https?://(?!www\.w3\.org/2000/svg)", drawn)
    assert "prefers-reduced-motion" in drawn


def test_a_still_has_all_rows_at_their_places() -> None:
    root = ElementTree.fromstring(still(FRAMES[2].rows, "exlchat"))
    texts = ["".join(one.itertext()).replace("\N{NO-BREAK SPACE}", " ") for one in root.iter(f"{SVG}text")]
    assert texts == ["exlchat", "hello <b> & 'you'", "$"]


def test_blocks_are_drawn_as_high_as_they_are() -> None:
    root = ElementTree.fromstring(still(((Span("a▂█", "#ffffff", "#000000"),),), "exlchat"))
    line = root.findall(f"{SVG}g")[-1]
    heights = [float(one.attrib["height"]) for one in line.iter(f"{SVG}rect")]
    bottoms = {float(one.attrib["y"]) + float(one.attrib["height"]) for one in line.iter(f"{SVG}rect")}
    assert heights == [16, 4, 16]
    assert len(bottoms) == 1


def test_cells_of_one_style_are_put_together_and_reversed_colours_change_places() -> None:
    plain, marked = Style(color="#010203", bgcolor="#040506"), Style(color="#010203", bgcolor="#040506", reverse=True)
    spans = row_of([Segment("ab", plain), Segment("c", plain), Segment("d", marked)], 6)
    assert [(one.text, one.color, one.background) for one in spans[:2]] == [
        ("abc", "#010203", "#040506"),
        ("d", "#040506", "#010203"),
    ]
    assert sum(len(one.text) for one in spans) == 6

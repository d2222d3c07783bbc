"""What reaches the key parser from a terminal: broken bytes and pastes in pieces of any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from exlchat.ui.tui.terminal_input import ESCAPE_PICTURE, PASTE_BEGINS, PASTE_ENDS, InputDecoder

HOSTILE = "first \x1b[31mred\x1b]0;title\x07\r\rsecond \x1b\x1b[200~ third"


def seen_by_app(data: bytes, piece: int) -> list[tuple[str, str]]:
    """The keys and pastes Textual makes of `data` read in pieces of `piece` bytes."""
    decoder, parser = InputDecoder(), XTermParser()
    texts = [decoder.feed(data[start : start + piece]) for start in range(0, len(data), piece)]
    found = [event for text in texts if text for event in parser.feed(text)]
    keys = [("key", event.key) if isinstance(event, events.Key) else None for event in found]
    pastes = [("paste", event.text) if isinstance(event, events.Paste) else None for event in found]
    return [one for pair in zip(keys, pastes, strict=True) for one in pair if one is not None]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64, 4096])
def test_a_paste_with_escape_characters_stays_one_paste_and_presses_no_key(piece: int) -> None:
    data = f"a{PASTE_BEGINS}{HOSTILE}{PASTE_ENDS}b".encode()
    pasted = HOSTILE.replace("\x1b", ESCAPE_PICTURE)
    assert seen_by_app(data, piece) == [("key", "a"), ("paste", pasted), ("key", "b")]


@pytest.mark.parametrize("piece", [1, 4, 4096])
def test_two_pastes_and_keys_between_them_keep_their_order(piece: int) -> None:
    data = f"{PASTE_BEGINS}one{PASTE_ENDS}x\x1b[A{PASTE_BEGINS}two\x1b{PASTE_ENDS}".encode()
    seen = seen_by_app(data, piece)
    assert seen == [("paste", "one"), ("key", "x"), ("key", "up"), ("paste", f"two{ESCAPE_PICTURE}")]


def test_an_escape_key_is_passed_on_at_once() -> None:
    assert InputDecoder().feed(b"\x1b") == "\x1b"


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"a\xffb", "a\ufffdb"), (b"\x9b31m", "\ufffd31m"), (b"\xc3(", "\ufffd("), ("grüße €".encode(), "grüße €")],
)
def test_broken_bytes_are_replaced_and_nothing_around_them_is_lost(data: bytes, text: str) -> None:
    decoder = InputDecoder()
    pieces = [data[start:end] for start, end in pairwise(range(len(data) + 1))]
    assert "".join(decoder.feed(piece) for piece in pieces) == text

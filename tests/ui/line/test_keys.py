"""What terminals send and what it is taken for; when Enter sends; which front a terminal can carry."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress

from exlchat.ui.line.choice import cannot_draw, cannot_move_cursor
from exlchat.ui.line.input_text import fence_is_open, goes_on
from exlchat.ui.line.keys import learn_keys
from exlchat.ui.line.pastes import WholePastes
from tests.patience import within


def keys_of(sequence: str) -> list[str]:
    learn_keys()
    pressed: list[KeyPress] = []
    parser = Vt100Parser(pressed.append)
    parser.feed(sequence)
    parser.flush()
    return [str(getattr(one.key, "value", one.key)) for one in pressed]


@pytest.mark.parametrize(
    ("sequence", "keys"),
    [
        ("\x1b[13;2u", ["escape", "c-m"]),  # kitty, shift+enter
        ("\x1b[13;130u", ["escape", "c-m"]),  # the same with num lock on
        ("\x1b[27;2;13~", ["escape", "c-m"]),  # xterm, shift+enter
        ("\x1b[27;3;13~", ["escape", "c-m"]),  # xterm, alt+enter
        ("\x1b[13;5u", ["c-m"]),
        ("\x1b[99;5u", ["c-c"]),
        ("\x1b[99;133u", ["c-c"]),
        ("\x1b[27u", ["escape"]),
        ("\x1b[102;3u", ["escape", "f"]),  # alt+f
        ("\x1b[9;2u", ["s-tab"]),
        ("\x1b[32;5u", ["c-@"]),
        ("\x1b[127;3u", ["escape", "c-h"]),
        ("\x1b[1;129A", ["up"]),
        ("\x1b[1;133C", ["c-right"]),
        ("\x1b[3;129~", ["delete"]),
        ("\x1b[A", ["up"]),
        ("\r", ["c-m"]),
        ("\n", ["c-j"]),
    ],
)
def test_sequences(sequence: str, keys: list[str]) -> None:
    assert keys_of(sequence) == keys


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("", False),
        ("```", True),
        ("```python\nx", True),
        ("```\nx\n```", False),
        ("```\nx\n``", True),
        ("````\n```", True),
        ("~~~\n```", True),
        ("~~~\n~~~", False),
        ("    ```", False),
        ("```a`b", False),
        ("text ``` text", False),
        ("```\nx\n```\n```", True),
    ],
)
def test_fences(text: str, is_open: bool) -> None:
    assert fence_is_open(text) is is_open


def test_a_backslash_at_the_end_becomes_a_new_line() -> None:
    assert goes_on("one\\") == "one\n"
    assert goes_on("one") is None
    assert goes_on("```\none") == "```\none\n"


@pytest.mark.parametrize(
    ("term", "expected"),
    [("dumb", "TERM is dumb"), ("", "TERM is not set"), ("xterm-256color", None), ("linux", None)],
)
def test_a_terminal_that_cannot_move_its_cursor_is_named(term: str, expected: str | None) -> None:
    assert cannot_move_cursor(term) == expected


def test_a_terminal_that_takes_no_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    utf8 = io.TextIOWrapper(io.BytesIO(), encoding="UTF8")
    latin = io.TextIOWrapper(io.BytesIO(), encoding="ISO-8859-1")
    assert cannot_draw(utf8, utf8) is None
    assert cannot_draw(utf8, latin) == "the terminal takes iso8859-1, not UTF-8"


def test_starting_the_line_mode_loads_neither_textual_nor_torch_and_plain_lines_no_prompt_toolkit() -> None:
    code = "import sys, exlchat.cli.main, exlchat.ui.line.run, exlchat.ui.line.{}; print(*({} & set(sys.modules)))"
    for module, absent in (("screen", {"textual", "torch"}), ("plain", {"textual", "torch", "prompt_toolkit"})):
        run = [sys.executable, "-c", code.format(module, absent)]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == ""


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 6, 7, 64])
def test_a_paste_comes_whole_and_keys_around_it_stay_keys(piece: int) -> None:
    sent = "a\x1b[A\x1b[200~one\x1b[201x\rtwo\x1b[201~b\x1b[200~\x1b[201~\x1b"
    pressed: list[KeyPress] = []
    parser = WholePastes(Vt100Parser(pressed.append))
    for start in range(0, len(sent), piece):
        parser.feed(sent[start : start + piece])
    parser.flush()
    keys = [(str(getattr(one.key, "value", one.key)), one.data) for one in pressed]
    assert keys == [
        ("a", "a"),
        ("up", "\x1b[A"),
        ("<bracketed-paste>", "one\x1b[201x\rtwo"),
        ("b", "b"),
        ("<bracketed-paste>", ""),
        ("escape", "\x1b"),
    ]


def test_five_megabytes_in_pieces_of_a_terminal_take_no_seconds() -> None:
    pressed: list[KeyPress] = []
    parser = WholePastes(Vt100Parser(pressed.append))
    with within(2):  # prompt_toolkit's own parser: above 20
        for text in ("\x1b[200~", *["x" * 1024] * 5000, "\x1b[201~"):
            parser.feed(text)
        assert [len(one.data) for one in pressed] == [5000 * 1024]

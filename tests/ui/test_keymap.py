"""Keys of the user's own: which hold, and what is said of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual._xterm_parser import XTermParser
from textual.binding import Binding
from textual.events import Key
from textual.widgets import TextArea

from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.keys.keymap import PAIRS, keymap, with_keys
from exlchat.app.keys.names import EDITING, MOVING, KeyNameError, key_name
from exlchat.ui.tui.widgets.composer import Composer


def test_without_settings_the_registry_holds() -> None:
    keys = keymap(())
    assert keys.problems == ()
    assert all(keys.keys(action.id) == action.keys for action in ACTIONS)
    assert keys.bindings() == {}


def test_own_keys_take_the_place_of_those_of_the_registry() -> None:
    keys = keymap((("retry", ("Ctrl+G", "f12")), ("scroll-ends", ("alt+home", "alt+end"))))
    assert keys.problems == ()
    assert keys.keys("retry") == ("ctrl+g", "f12")
    assert keys.keys("new") == ("ctrl+n",)
    assert keys.bindings() == {"retry": "ctrl+g,f12", "scroll-first": "alt+home", "scroll-last": "alt+end"}


def test_two_actions_may_change_places() -> None:
    keys = keymap((("retry", ("ctrl+n",)), ("new", ("ctrl+t",))))
    assert keys.problems == ()
    assert (keys.keys("retry"), keys.keys("new")) == (("ctrl+n",), ("ctrl+t",))


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ({"retry": ["ctrl+n"]}, ["keys.retry: ctrl+n is a key of new (New conversation)", "ctrl+t stays"]),
        ({"retry": ["ctrl+g"], "new": ["ctrl+g"]}, ["keys.new: ctrl+g is a key of retry", "ctrl+n stays"]),
        ({"rename-selected": ["u"]}, ["u is a key of undo-delete", "r stays"]),
        ({"rename-selected": ["ctrl+n"]}, ["ctrl+n is a key of new"]),
        ({"retry": ["ctrl+i"]}, ["keys.retry: ctrl+i cannot be told from tab in terminals; ctrl+t stays"]),
        ({"retry": ["ctrl+m"]}, ["cannot be told from enter"]),
        ({"retry": ["ctrl+h"]}, ["cannot be told from backspace"]),
        ({"retry": ["ctrl+["]}, ["cannot be told from escape"]),
        ({"retry": ["ctrl+,"]}, ["is not sent by most terminals"]),
        ({"retry": ["cmd+r"]}, ["'cmd'", "terminals do not send"]),
        ({"retry": ["x"]}, ["x is needed for typing"]),
        ({"retry": ["space"]}, ["space is needed for typing"]),
        ({"send": ["ctrl+k"]}, ["ctrl+k is needed for typing", "enter stays"]),
        ({"retry": ["up"]}, ["up is needed for moving about"]),
        ({"delete-selected": ["enter"]}, ["enter is needed for moving about", "d, delete stay"]),
        ({"retry": ["hurry"]}, ["'hurry' is no key"]),
        ({"retry": ["a\x1b[2J"]}, ["is no key"]),
        ({"retry": []}, ["no key is named"]),
        ({"scroll-page": ["f3"]}, ["it needs two keys"]),
        ({"rety": ["f3"]}, ["there is no such action; did you mean retry?"]),
        ({"pin": ["f3"]}, ["it has no key, only /pin"]),
    ],
)
def test_what_cannot_be_is_explained_and_the_keys_stay(wanted: dict[str, list[str]], parts: list[str]) -> None:
    keys = keymap(tuple((action, tuple(names)) for action, names in wanted.items()))
    (line,) = keys.problems
    assert line.isprintable()
    for part in parts:
        assert part in line
    last = list(wanted)[-1]
    if last in BY_ID:
        assert keys.keys(last) == BY_ID[last].keys


def test_one_that_goes_back_to_its_key_does_not_push_another_there_out_silently() -> None:
    # retry cannot have ctrl+q, so it keeps ctrl+t, which new wanted.
    keys = keymap((("retry", ("ctrl+q",)), ("new", ("ctrl+t",))))
    assert len(keys.problems) == 2
    assert (keys.keys("retry"), keys.keys("new")) == (("ctrl+t",), ("ctrl+n",))


def test_enter_may_make_new_lines_where_another_key_sends() -> None:
    keys = keymap((("send", ("alt+enter",)), ("new-line", ("enter",))))
    assert keys.problems == ()
    assert (keys.keys("send"), keys.keys("new-line")) == (("alt+enter",), ("enter",))
    assert keymap((("new-line", ("enter",)),)).problems != ()


def test_letters_are_free_in_the_sidebar() -> None:
    assert keymap((("rename-selected", ("y", "Y")),)).keys("rename-selected") == ("y", "Y")


@pytest.mark.parametrize("data", ["\x1bh", "\x1bH", "\x1b[104;4u", "\x07", "\x1b[15~", "\x1b[1;3A", "\x1b[1;6C", "T"])
def test_names_are_those_that_terminals_give_rise_to(data: str) -> None:
    parser = XTermParser()
    (event,) = (one for one in (*parser.feed(data), *parser.feed("")) if isinstance(one, Key))
    assert key_name(event.key) == event.key


def test_a_capital_with_alt_is_shift() -> None:
    assert key_name("alt+H") == key_name("Alt+Shift+h") == "alt+shift+h"


def test_one_row_is_checked_beside_the_others() -> None:
    wanted = (("retry", ("ctrl+g",)),)
    assert with_keys(wanted, "new", ["ctrl+t"]) == ("ctrl+t",)
    with pytest.raises(ValueError, match=r"ctrl\+g is a key of retry"):
        with_keys(wanted, "new", ["ctrl+g"])


def test_what_typing_needs_is_what_the_text_area_has() -> None:
    of_text_area = {key.strip() for one in TextArea.BINDINGS if isinstance(one, Binding) for key in one.key.split(",")}
    ours = {key.strip() for one in Composer.BINDINGS if isinstance(one, Binding) for key in one.key.split(",")}
    missing = {key for key in of_text_area - ours - MOVING - EDITING if not key.startswith("super+")}
    assert missing == set()


@given(st.text(max_size=12))
def test_any_text_is_a_key_or_is_refused_in_one_printable_line(text: str) -> None:
    said = ""
    try:
        name = key_name(text)
    except KeyNameError as error:
        said = str(error)
    else:
        assert key_name(name) == name
    assert said.isprintable()


@given(st.lists(st.tuples(st.sampled_from([*BY_ID, "x"]), st.lists(st.sampled_from(
    ["ctrl+g", "ctrl+t", "ctrl+n", "f12", "x", "escape", "up", "down", "ctrl+i", "pageup", "alt+x", "enter"]
), max_size=3).map(tuple)), max_size=6))  # fmt: skip
def test_no_key_ever_means_two_things(wanted: list[tuple[str, tuple[str, ...]]]) -> None:
    keys = keymap(tuple(dict(wanted).items()))
    for place in ("composer", "sidebar"):
        found = [key for one in ACTIONS if one.place in (place, "everywhere") for key in keys.keys(one.id)]
        assert {key for key in found if found.count(key) > 1} <= {"escape"}
    assert all(len(keys.keys(action)) == 2 for action in PAIRS)

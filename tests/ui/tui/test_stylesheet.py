"""The style sheet is parsed again for other colours, and for those only."""

from __future__ import annotations

from exlchat.ui.tui.stylesheet import SteadyStylesheet


def sheet() -> SteadyStylesheet:
    made = SteadyStylesheet(variables={"ink": "#102030"})
    made.add_source("Label { color: $ink; }")
    return made


def ink(made: SteadyStylesheet) -> str:
    (rule,) = made.rules
    color = rule.styles.get_rule("color")
    return str(color.hex)  # type: ignore[union-attr]


def test_the_same_colours_are_not_parsed_again() -> None:
    made = sheet()
    before = made.rules
    made.set_variables({"ink": "#102030"})
    made.reparse()
    assert made.rules is before


def test_other_colours_are() -> None:
    made = sheet()
    assert ink(made) == "#102030"
    made.set_variables({"ink": "#405060"})
    made.reparse()
    assert ink(made) == "#405060"
    made.set_variables({"ink": "#102030"})
    made.reparse()
    assert ink(made) == "#102030"


def test_a_sheet_that_was_added_is_parsed_without_other_colours() -> None:
    made = sheet()
    assert len(made.rules) == 1
    made.add_source("Button { color: $ink; }", read_from=("buttons", ""))
    made.reparse()
    assert len(made.rules) == 2

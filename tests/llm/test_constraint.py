"""What a constraint says of itself, before any engine has seen it."""

from __future__ import annotations

import pytest

from exlchat.llm.constraint import KINDS, LARGEST, Constraint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_one_is_refused_by_its_kind(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^the {kind.replace('_', ' ')} is empty$"):
        Constraint(kind, text)  # type: ignore[arg-type]


def test_one_that_is_too_long_is_refused_with_its_length() -> None:
    Constraint("regex", "a" * LARGEST)
    with pytest.raises(ValueError, match=f"the regex has {LARGEST + 1:,} characters"):
        Constraint("regex", "a" * (LARGEST + 1))


def test_equal_choices_are_one() -> None:
    assert Constraint("choice", "yes\nno\nyes\n") == Constraint("choice", "yes\nno")

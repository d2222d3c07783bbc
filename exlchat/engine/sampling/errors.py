"""Why no token can be drawn."""

from __future__ import annotations

from collections.abc import Sequence


class NotNumbersError(ValueError):
    """A logit of the model is NaN or +inf, or all are -inf: there is nothing to draw from."""

    def __init__(self) -> None:
        super().__init__("the logits are not numbers")


class NothingAllowedError(ValueError):
    """The model gave numbers, but what bars tokens leaves none of them.

    Args:
        causes: everything that barred tokens, in words.
    """

    def __init__(self, causes: Sequence[str]) -> None:
        *others, last = causes
        named = f"{', '.join(others)} and {last} together bar" if others else f"{last} bars"
        super().__init__(f"no token may come here: {named} every one; loosen {'one of them' if others else 'it'}")

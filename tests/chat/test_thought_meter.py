"""How long a model thinks, whatever the pieces in which its text comes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.prompt.thinking import THINK
from exlchat.chat.prompt.thought_meter import Thought, ThoughtMeter
from exlchat.llm.events import Event, TextDelta
from exlchat.llm.thought_splitter import Thoughts, told_apart

SAID = "<think>\nLet me see.\n</think>\n\nYes."
BEGINS = SAID.index("Yes")


def metered(*pieces: str, opened: bool = False) -> Thought | None:
    now = -1.0

    def coming() -> Iterator[Event]:
        nonlocal now
        for piece in pieces:
            now += 1.0
            yield TextDelta(piece, (0,) * len(piece))

    meter = ThoughtMeter(clock=lambda: now)
    for event in told_apart(coming(), Thoughts(replace(THINK, opened=opened))):
        assert isinstance(event, TextDelta)
        meter.add(event)
    return meter.thought


def test_tokens_up_to_the_answer_and_the_time_until_it_begins_are_counted() -> None:
    assert metered(*SAID) == Thought(BEGINS, float(BEGINS))
    assert metered(*SAID.removeprefix("<think>"), opened=True) == Thought(BEGINS - 7, float(BEGINS - 7))


def test_nothing_was_thought() -> None:
    assert metered(*"Yes.") is None
    assert metered("<think>\n\n</think>\n\n", "Yes.") is None
    meter = ThoughtMeter()
    meter.add(TextDelta("<think>Hm.</think>", (1, 2, 3)))
    assert meter.thought is None


@given(st.lists(st.integers(0, len(SAID)), max_size=6))
def test_pieces_count_as_tokens_until_the_one_with_the_first_word_of_the_answer(cuts: list[int]) -> None:
    edges = sorted({0, *cuts, len(SAID)})
    pieces = [SAID[left:right] for left, right in itertools.pairwise(edges)]
    before = [piece for piece, right in zip(pieces, edges[1:], strict=True) if right <= BEGINS]
    got = metered(*pieces)
    assert got is not None
    assert got.tokens == len("".join(before))
    assert got.seconds == len(before)

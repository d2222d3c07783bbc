from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.model import Message
from exlchat.chat.prompt.context import ANSWER_RESERVE, ContextFull, Seen, plan_context, require_room, turns_of


def test_a_prompt_that_leaves_room_for_an_answer_fits() -> None:
    require_room(68, 100)
    require_room(97, 100, max_new_tokens=3)
    require_room(68, 100, max_new_tokens=1000)


@pytest.mark.parametrize(("prompt", "max_new_tokens"), [(69, None), (98, 3), (69, 1000), (5000, None)])
def test_what_does_not_fit_is_said_with_its_numbers(prompt: int, max_new_tokens: int | None) -> None:
    with pytest.raises(ContextFull) as caught:
        require_room(prompt, 100, max_new_tokens=max_new_tokens)
    line = str(caught.value)
    assert "\n" not in line
    for part in (f"{prompt:,} tokens", "holds 100", "new conversation", "--context"):
        assert part in line
    assert "context_policy" not in line
    assert (caught.value.prompt_tokens, caught.value.max_seq_len) == (prompt, 100)


def test_the_policies_are_named_where_they_would_help() -> None:
    with pytest.raises(ContextFull, match=r"/set context_policy drop \(or summarise\)"):
        require_room(100, 100, can_drop=True)


# The cut. A message takes as many tokens as its text has characters; system messages and all else take none.


def branch_of(*turns: tuple[int, int], pinned: tuple[int, ...] = (), system: int = 0) -> list[Message]:
    """Turns of a question and an answer of these sizes; the last answer is still to come. `pinned` are turns."""
    branch = [Message("s", None, "system", "x" * system, 0.0)] if system else []
    for number, (question, answer) in enumerate(turns):
        branch.append(Message(f"u{number}", None, "user", "x" * question, 0.0))
        branch.append(Message(f"a{number}", None, "assistant", "x" * answer, 0.0, pinned=number in pinned))
    return branch[:-1]


def size(seen: Seen) -> int:
    return sum(len(message.text) for message in seen.messages)


def test_what_fits_is_seen_as_a_whole() -> None:
    branch = branch_of(*[(40, 40)] * 10)
    assert plan_context(branch, size, 1000) == Seen(tuple(branch))


def test_a_cut_is_made_when_prompt_and_answer_no_longer_fit_and_goes_down_to_seventy_percent() -> None:
    # An eighth of 1000 is kept for the answer: 875 fit.
    fits, over = branch_of(*[(40, 40)] * 10, (75, 0)), branch_of(*[(40, 40)] * 10, (76, 0))
    assert plan_context(fits, size, 1000).first_id is None
    seen = plan_context(over, size, 1000)
    # 876 less 3 turns of 80 is 636; with one less it would be 716.
    assert (seen.first_id, seen.dropped, size(seen)) == ("u3", 6, 636)
    assert [message.id for message in seen.before] == ["u0", "a0", "u1", "a1", "u2", "a2"]
    assert seen.messages == tuple(over[6:])


def test_a_short_answer_leaves_more_room_for_the_prompt() -> None:
    over = branch_of(*[(40, 40)] * 10, (76, 0))
    assert plan_context(over, size, 1000, max_new_tokens=100).first_id is None


def test_a_cut_stays_until_it_does_not_fit_again() -> None:
    cuts: list[str | None] = []
    for count in range(1, 40):
        branch = branch_of(*[(40, 40)] * count)
        cuts.append(plan_context(branch, size, 1000, previous=cuts[-1] if cuts else None).first_id)
    changes = [cut for before, cut in pairwise(cuts) if cut != before]
    assert len(changes) > 5
    # From 680 of 1000 at a cut to 840, the last that fit, are two turns more; then comes the next cut.
    assert all(cuts.count(cut) == 3 for cut in changes[:-1])


def test_a_larger_context_shows_everything_again_only_below_seventy_percent() -> None:
    branch = branch_of(*[(40, 40)] * 11)
    assert plan_context(branch, size, 1199, previous="u3").first_id == "u3"
    assert plan_context(branch, size, 1200, previous="u3").first_id is None


def test_thoughts_that_the_template_drops_do_not_keep_a_cut_in_a_larger_context() -> None:
    branch = [
        Message(one.id, None, one.role, one.text, 0.0, token_ids=(1,) * 400 if one.role == "assistant" else ())
        for one in branch_of(*[(40, 40)] * 11)
    ]
    assert plan_context(branch, size, 1200, previous="u3").first_id is None


def test_of_a_conversation_far_longer_than_the_context_the_whole_prompt_is_not_made() -> None:
    branch = [Message(one.id, None, one.role, one.text, 0.0, token_ids=(1,) * 2000) for one in branch_of(*[(9, 9)] * 9)]
    sizes: list[int] = []

    def counted(seen: Seen) -> int:
        sizes.append(len(seen.messages))
        return size(seen)

    plan_context(branch, counted, 1200, previous="u3")
    assert sizes == [len(branch) - 6]


def test_pinned_turns_system_messages_and_the_last_turn_stay() -> None:
    branch = branch_of(*[(40, 40)] * 12, pinned=(0, 2), system=100)
    seen = plan_context(branch, size, 1000)
    kept = [message.id for message in seen.messages]
    assert kept[:5] == ["s", "u0", "a0", "u2", "a2"]
    assert kept[5] == seen.first_id
    assert kept[-1] == "u11"
    assert seen.dropped == len(branch) - len(kept)


def test_where_all_earlier_turns_are_pinned_nothing_is_left_out() -> None:
    branch = branch_of((300, 300), (300, 0), pinned=(0,))
    assert plan_context(branch, size, 1000) == Seen(tuple(branch))


def test_what_has_to_stay_and_does_not_fit_is_said() -> None:
    with pytest.raises(ContextFull) as caught:
        plan_context(branch_of((40, 40), (400, 400), (200, 0), pinned=(1,)), size, 1000)
    assert caught.value.prompt_tokens == 1000
    # Less than an eighth for the answer will do when nothing more can be left out.
    assert size(plan_context(branch_of((40, 40), (960, 0)), size, 1000)) == 960


def test_messages_of_the_user_that_follow_each_other_are_one_turn() -> None:
    branch = branch_of((1, 1), (1, 1), (1, 0))
    del branch[3]
    branch.insert(3, Message("s", None, "system", "", 0.0))
    assert [[one.id for one in turn] for turn in turns_of(branch)] == [["u0", "a0"], ["u1", "u2"]]


@given(
    turns=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=30),
    pinned=st.sets(st.integers(0, 29), max_size=4),
    system=st.integers(0, 200),
    limit=st.integers(100, 2000),
    previous=st.none() | st.integers(0, 29).map(lambda number: f"u{number}"),
)
def test_any_conversation(
    turns: list[tuple[int, int]], pinned: set[int], system: int, limit: int, previous: str | None
) -> None:
    branch = branch_of(*turns, pinned=tuple(pinned), system=system)
    must = {"s"} | {one.id for turn in turns_of(branch) if any(m.pinned for m in turn) for one in turn}
    must |= {one.id for one in turns_of(branch)[-1]}
    least = sum(len(one.text) for one in branch if one.id in must)
    try:
        seen = plan_context(branch, size, limit, previous=previous)
    except ContextFull:
        assert least + ANSWER_RESERVE > limit
        return
    ids = [one.id for one in seen.messages]
    assert size(seen) + ANSWER_RESERVE <= limit
    assert must & {one.id for one in branch} <= set(ids)
    assert ids == [one.id for one in branch if one.id in set(ids)]
    assert len(branch) - len(ids) == seen.dropped
    assert (seen.first_id is None) == (seen.dropped == 0)
    # What was just cut is not cut again, neither with the same messages nor seen from its own cut.
    assert plan_context(branch, size, limit, previous=seen.first_id) == seen or size(Seen(tuple(branch))) <= limit
    if seen.first_id is not None:
        assert all(one.id in ids for one in branch[[m.id for m in branch].index(seen.first_id) :])

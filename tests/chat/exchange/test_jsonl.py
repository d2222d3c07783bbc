"""Our own file: nothing is lost, and what is damaged of it costs only itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.chat.exchange.limits import Problems
from exlchat.chat.exchange.mending import mended
from exlchat.chat.exchange.reading import detect
from exlchat.chat.exchange.writing import written
from exlchat.chat.model import ConversationTree, Message
from tests.chat.exchange.trees import imported, is_whole, json_lines, said, trees


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(trees(), min_size=1, max_size=3))
def test_what_was_written_is_what_is_read(tmp_path: Path, several: list[ConversationTree]) -> None:
    found = imported(tmp_path, "all.jsonl", written(several, "jsonl"))
    assert found.kind == "exlchat"
    assert found.trees == tuple(several)
    assert found.problems == ()


def test_lone_surrogates_become_a_file_that_can_be_read(tmp_path: Path) -> None:
    tree = ConversationTree("a\ud800", 1.0, 2.0, "m", (Message("m", None, "user", "b\udfffc", 1.0),))
    found = imported(tmp_path, "a.jsonl", written([tree], "jsonl").encode("utf-8"))
    assert (found.trees[0].title, said(found.trees[0])) == ("a\ufffd", [("user", "b\ufffdc")])


HEADER = {"exlchat": "conversation", "version": 1, "title": "Owls", "created_at": 5.0, "updated_at": 6.0, "messages": 2}


def line(ident: str, parent: str | None, **more: object) -> dict[str, object]:
    message = {"exlchat": "message", "id": ident, "parent_id": parent, "role": "user", "text": ident, "created_at": 5.0}
    return {**message, **more}


def test_a_damaged_line_costs_itself_alone(tmp_path: Path) -> None:
    content = json_lines(HEADER, line("a", None)) + '{"exlchat": "mess\n' + json_lines(line("c", "b"))
    found = imported(tmp_path, "a.jsonl", content)
    assert said(found.trees[0]) == []
    assert [(m.id, m.parent_id) for m in found.trees[0].messages] == [("a", None), ("c", "a")]
    assert "line 3: left out: the JSON breaks off (line 1, column 13); it is damaged or not whole" in found.problems
    assert any("no parent" in problem for problem in found.problems)


def test_a_newer_version_is_refused_and_does_not_stop_the_others(tmp_path: Path) -> None:
    newer = {**HEADER, "version": 2}
    content = json_lines(newer, line("a", None), {**HEADER, "messages": 1, "tip_id": "b"}, line("b", None))
    found = imported(tmp_path, "a.jsonl", content)
    assert [said(tree) for tree in found.trees] == [[("user", "b")]]
    assert found.lost == 1
    assert found.problems == ("line 1: left out: version 2, and this exlchat reads 1",)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"role": "tool"}, "a message needs an id, a text, and a role and a status"),
        ({"role": ["user"]}, "a message needs an id, a text, and a role and a status"),
        ({"text": None}, "a message needs an id, a text, and a role and a status"),
        ({"status": "lost"}, "a message needs an id, a text, and a role and a status"),
        ({"token_ids": [1, -1]}, "its token ids are no token ids"),
        ({"token_ids": [2**32]}, "its token ids are no token ids"),
        ({"token_ids": [True]}, "its token ids are no token ids"),
        ({"record": {"model": "m"}}, "how the answer came to be cannot be read"),
        ({"record": "x"}, "how the answer came to be cannot be read"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, more: dict[str, object], problem: str) -> None:
    found = imported(tmp_path, "a.jsonl", json_lines(HEADER, line("a", None), line("b", "a", **more)))
    assert len(found.trees) == 1
    assert any(problem in line for line in found.problems)
    assert not any(message.token_ids or message.record for message in found.trees[0].messages)


def test_statistics_of_a_wrong_type_are_no_record(tmp_path: Path) -> None:
    names = ("prompt_tokens", "cached_tokens", "new_tokens", "time_to_first_token", "prefill_seconds", "decode_seconds")
    record = {
        "model": "m",
        "template": "t",
        "sampling": {},
        "stats": {**dict.fromkeys(names, 1), "seed": "many"},
        "finish_reason": None,
    }
    found = imported(tmp_path, "a.jsonl", json_lines(HEADER, line("a", None, record=record)))
    assert found.trees[0].messages[0].record is None
    record["stats"]["seed"] = 3  # type: ignore[index]
    found = imported(tmp_path, "a.jsonl", json_lines(HEADER, line("a", None, record=record)))
    assert found.trees[0].messages[0].record is not None


def test_a_header_alone_is_an_empty_conversation(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**HEADER, "messages": 0}))
    assert detect(path) == "exlchat"
    assert imported(tmp_path, "a.jsonl", {**HEADER, "messages": 0}).trees[0].messages == ()


@st.composite
def tangled(draw: st.DrawFn) -> list[Message]:
    """Messages whose ids repeat and whose parents are anybody, themselves included."""
    ids = st.integers(0, 12).map(str)
    return [
        Message(draw(ids), draw(st.none() | ids), "user", str(number), 1.0, edited_from=draw(st.none() | ids))
        for number in range(draw(st.integers(0, 14)))
    ]


@given(tangled())
def test_any_tangle_becomes_a_tree_with_every_message(messages: list[Message]) -> None:
    tree = mended(messages, Problems(), "")
    assert sorted(message.text for message in tree) == sorted(message.text for message in messages)
    ids = {message.id for message in tree}
    assert all(message.edited_from is None or message.edited_from in ids for message in tree)
    if tree:
        assert is_whole(ConversationTree(None, 1.0, 1.0, tree[-1].id, tree))


@given(trees())
def test_a_tree_that_is_whole_is_left_as_it_is(tree: ConversationTree) -> None:
    problems = Problems()
    assert mended(tree.messages, problems, "") == tree.messages
    assert problems.lines() == ()

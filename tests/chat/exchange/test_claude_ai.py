"""claude.ai's export: its tree, files that were sent along, calls of tools; and which archive is whose."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.exchange.reading import detect
from tests.chat.exchange.claude_export import ROOT, block, claude_ai, message, text
from tests.chat.exchange.test_importers import chatgpt, only
from tests.chat.exchange.trees import children, imported, is_whole, said, with_text
from tests.patience import within


def seconds(hour: int, second: int) -> float:
    return datetime(2026, 3, 1, hour, 0, second, tzinfo=UTC).timestamp()


def test_the_tree_the_files_and_the_calls_of_tools(tmp_path: Path) -> None:
    tree = only(tmp_path, "conversations.json", [claude_ai()])
    assert detect(tmp_path / "conversations.json") == "claude-ai"
    asked = "And this?\n\nreport.md:\n\n````\n# Sums\n```\n1\n```\n````\n\n[owl.png]"
    assert said(tree) == [("user", asked), ("assistant", "Let me count.\n\nIt is 2."), ("user", "Long words.")]
    assert children(tree, None) == ["What is 1 + 1?", asked]
    assert children(tree, "What is 1 + 1?") == ["3"]
    assert (tree.title, tree.created_at, tree.updated_at) == ("Sums", seconds(10, 0), seconds(11, 0))
    answer = with_text(tree, "Let me count.\n\nIt is 2.")
    assert (answer.id, answer.created_at, answer.thinking) == ("a2", seconds(10, 4), "One and one.")
    assert [step["type"] for step in answer.foreign["steps"]] == ["tool_use", "tool_result"]
    assert tree.foreign["claude-ai"] == {"uuid": "c1", "account": {"uuid": "me"}}


def test_what_only_newer_files_have(tmp_path: Path) -> None:
    more = {"current_leaf_message_uuid": "a1", "is_starred": True, "model": "claude-x"}
    tree = only(tmp_path, "a.json", claude_ai(**more))
    assert said(tree) == [("user", "What is 1 + 1?"), ("assistant", "3")]
    assert tree.pinned
    assert with_text(tree, "3").foreign["model"] == "claude-x"


def test_old_files_have_a_list_without_parents_and_texts_without_blocks(tmp_path: Path) -> None:
    one = claude_ai()
    for entry, line in zip(one["chat_messages"], ["Hi", "Hello.", "Bye", "Oh.", "!"], strict=True):
        del entry["parent_message_uuid"], entry["content"]
        entry |= {"text": line, "attachments": [], "files": []}
    roles = ["user", "assistant", "user", "assistant", "user"]
    assert said(only(tmp_path, "a.json", [one])) == list(zip(roles, ["Hi", "Hello.", "Bye", "Oh.", "!"], strict=True))


def test_a_block_of_another_kind_is_seen_and_kept(tmp_path: Path) -> None:
    entry = message("q", ROOT, "human", 1, text("Look:"), block("image", source="x"))
    tree = only(tmp_path, "a.json", [claude_ai(chat_messages=[entry])])
    assert said(tree) == [("user", "Look:\n\n[image]")]
    assert tree.messages[0].foreign["claude-ai"]["content"][1]["source"] == "x"


def test_a_message_of_nobody_known_is_left_out_and_its_answers_are_not(tmp_path: Path) -> None:
    one = claude_ai()
    one["chat_messages"][1]["sender"] = "robot"
    one["chat_messages"].insert(2, message("q1b", "a1", "human", 3, text("Really?")))
    found = imported(tmp_path, "a.json", [one])
    assert found.left_out == 1
    assert found.problems == ("conversation 1 (Sums): 1 messages of no known sender were left out",)
    assert children(found.trees[0], "What is 1 + 1?") == ["Really?"]


@pytest.mark.parametrize("step", [1, -1])
def test_a_long_row_of_them_takes_no_time(tmp_path: Path, step: int) -> None:
    count = 4000
    row = [message(f"{n}", f"{n + step}", "robot", 1) for n in range(count)]
    answers = [message(f"a{n}", "0" if step > 0 else f"{count - 1}", "human", 2, text("Well?")) for n in range(count)]
    with within(2):
        found = imported(tmp_path, "a.json", [claude_ai(chat_messages=[*row, *answers])])
    assert (len(found.trees[0].messages), found.left_out) == (count, count)


def test_a_conversation_without_messages_is_named(tmp_path: Path) -> None:
    found = imported(tmp_path, "a.json", [claude_ai(), claude_ai(name="", chat_messages=[])])
    assert (len(found.trees), found.lost) == (1, 1)
    assert found.problems == ("conversation 2: left out: it has no messages",)


def test_circles_missing_and_doubled_messages(tmp_path: Path) -> None:
    one = claude_ai()
    first, _, second, _, third = one["chat_messages"]
    first["parent_message_uuid"] = "q1"
    second["parent_message_uuid"] = "gone"
    third["uuid"] = "a1"
    found = imported(tmp_path, "a.json", [one])
    assert is_whole(found.trees[0])
    assert len(found.trees[0].messages) == 5
    assert [line.split(": ", 1)[1] for line in found.problems] == [
        "1 ids are of several messages; the later ones got others",
        "1 message has no parent; put behind the message before",
        "1 message has themselves among their ancestors; put behind the message before",
    ]


def zipped(files: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, json.dumps(content))
    return buffer.getvalue()


@pytest.mark.parametrize(("conversation", "kind"), [(claude_ai, "claude-ai"), (chatgpt, "chatgpt")])
def test_whose_archive_it_is_is_told_by_what_it_holds(tmp_path: Path, conversation: Any, kind: str) -> None:
    files = {"users.json": [{"uuid": "me"}], "projects.json": [], "conversations.json": [conversation()]}
    found = imported(tmp_path, "a.zip", zipped(files))
    assert (found.kind, [tree.title for tree in found.trees], found.problems) == (kind, ["Sums"], ())


def test_what_of_an_archive_is_no_conversation_is_named(tmp_path: Path) -> None:
    projects = [{"uuid": "p", "name": "House", "docs": [{"filename": "a.txt", "content": "x"}]}]
    files = {"conversations.json": [claude_ai()], "projects.json": projects, "memories.json": [{"memory": "m"}]}
    found = imported(tmp_path, "a.zip", zipped(files))
    assert (len(found.trees), found.left_out) == (1, 0)
    assert found.problems == ("2 other files are not read, as projects.json: no conversations",)

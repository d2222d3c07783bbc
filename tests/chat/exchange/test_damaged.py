"""Files that are damaged or meant to do harm: one line each, within a second, nothing executed, nothing lost beside."""

from __future__ import annotations

import copy
import io
import json
import struct
import time
import unicodedata
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.chat.exchange import limits, raw
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.reading import read
from exlchat.chat.exchange.values import seconds_of
from exlchat.chat.exchange.writing import written
from tests.chat.exchange.claude_export import claude_ai
from tests.chat.exchange.test_importers import AICHAT, TALK, chatgpt, node, open_webui
from tests.chat.exchange.trees import children, imported, imported_or_refused, is_whole, json_lines, said
from tests.patience import within

SECONDS = 1.0


def refused(folder: Path, content: Any, name: str = "a.json") -> str:
    """The one line that a file is refused with, which names it."""
    with within(SECONDS), pytest.raises(ExchangeError) as error:
        imported(folder, name, content)
    line = str(error.value)
    assert line.startswith(str(folder / name))
    assert "\n" not in line
    return line.removeprefix(str(folder / name)).strip()


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [1000, 100_000])
@pytest.mark.parametrize("form", ["[", '{"a":'])
def test_a_thousand_levels_of_json(tmp_path: Path, levels: int, form: str) -> None:
    text = form * levels + "1" + ("]" if form == "[" else "}") * levels
    assert refused(tmp_path, text) == "cannot be imported: it is nested more than 100 levels deep"


def test_levels_that_python_reads_but_nobody_needs(tmp_path: Path) -> None:
    good, bad = {"messages": TALK}, {"messages": TALK, "meta": deep(300)}
    found = imported(tmp_path, "a.json", [good, bad])
    assert len(found.trees) == found.lost == 1
    assert found.problems == ("conversation 2: left out: it is nested more than 100 levels deep",)


def test_one_deep_line_costs_itself(tmp_path: Path) -> None:
    found = imported(tmp_path, "a.jsonl", json_lines(TALK[3], TALK[4]) + "[" * 5000 + "\n")
    assert len(found.trees[0].messages) == 2
    assert found.problems == ("line 3: left out: it is nested more than 100 levels deep",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("messages: [" + "[" * 1000 + "]" * 1000 + "]", "it is nested more than 100 levels deep"),
        ("a: &a [x]\nmessages: [*a]\n", "it is YAML with a reference (*a, line 2)"),
        ("messages: !!python/object/apply:os.system ['touch /tmp/never']\n", "it is YAML with a tag"),
        ("messages: [\n", "it is no YAML (line 2: "),
        ("messages:\n\t- x\n", "it is no YAML (line 2: "),
        ("".join(f"%TAG !a{n}! x\n" for n in range(60_000)) + "---\nmessages:\n", "it is YAML with a %TAG line"),
        ("messages: nothing\n", "it holds no conversations in a form that is known"),
    ],
)
def test_harmful_yaml(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(tmp_path, text, "a.yaml")


def test_numbers_as_names_in_yaml(tmp_path: Path) -> None:
    text = "7: a\n007: 007\nat: 2024-01-01\nhalf: .5\nmessages:\n- {role: user, content: Hi, 8: b}\n"
    tree = imported(tmp_path, "a.yaml", text).trees[0]
    assert tree.foreign["aichat"] == {"7": "a", "007": "007", "at": "2024-01-01", "half": 0.5}
    assert tree.messages[0].foreign["aichat"] == {"8": "b"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is empty"),
        ("   \n", "it is empty"),
        ("Dear diary", "it is none of the formats"),
        ("{}", "it holds no conversations"),
        ("[]", "it holds no conversations"),
        ("[1, 2]", "it holds no conversations"),
        ('{"messages": "none"}', "it holds no conversations"),
        (
            '[{"title": "Sums", "mapping": {"a": {"me',
            "the JSON breaks off (line 1, column 38); it is damaged or not whole",
        ),
        ('[{"title": Sums}]', "it is no JSON (expecting value at line 1, column 12)"),
        ("[" + "9" * 5000 + "]", "it holds no conversations"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR", "it is none of the formats"),
        (b"SQLite format 3\x00" + b"\xff" * 2000, "cannot be read as a database"),
        (b"PK\x03\x04" + b"\xff" * 2000, "cannot be unpacked"),
    ],
)
def test_what_is_no_conversation_is_named(tmp_path: Path, content: Any, reason: str) -> None:
    assert reason in refused(tmp_path, content)


def test_no_file(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "there is no such file"), (tmp_path, "not a plain file")):
        with pytest.raises(ExchangeError, match=reason):
            read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "FILE_BYTES", 1 << 20)
    assert "larger than 1 MiB" in refused(tmp_path, b"[" + b" " * (1 << 20) + b"]")


def archive(name: str, content: bytes, **fields: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED
        file.writestr(info, content)
    packed = buffer.getvalue()
    for offset, value in fields.items():
        packed = packed[: int(offset[1:])] + value + packed[int(offset[1:]) + len(value) :]
    return packed


def test_a_zip_that_lists_very_many_files_is_refused_before_the_list_is_read(tmp_path: Path) -> None:
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 0, 0, 33, 0, 0, 0, 30, 0, 0, 0, 0, 0, 0)
    listed = b"".join(entry + f"{number:030}".encode() for number in range(300_000))
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, len(listed), 0, 0)
    with within(2):
        assert "lists more files than an export has" in refused(tmp_path, b"PK\x03\x04" + listed + end, "a.zip")
        size = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 300_000, 300_000, len(listed), 4)
        large = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        assert "lists more files than an export has" in refused(
            tmp_path, b"PK\x03\x04" + listed + size + large, "a.zip"
        )


def test_a_zip_that_unpacks_to_very_much_is_refused(tmp_path: Path) -> None:
    assert "is unpacked to more than" in refused(tmp_path, archive("conversations.json", b" " * 100_000_000), "a.zip")


@pytest.mark.parametrize(
    "name", ["../conversations.json", "/conversations.json", "a/b/conversations.json", "card.json"]
)
def test_names_in_an_archive_lead_nowhere(tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())
    packed = archive(name, json.dumps([chatgpt()]).encode())
    if name.startswith("../"):
        # One folder above is a name like any other: it is compared, never opened.
        assert imported(tmp_path, "a.zip", packed).trees[0].title == "Sums"
    else:
        assert "an archive without conversations.json" in refused(tmp_path, packed, "a.zip")
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "a.zip"]


def test_an_encrypted_or_damaged_archive(tmp_path: Path) -> None:
    packed = archive("conversations.json", json.dumps([chatgpt()]).encode() * 3)
    directory = packed.index(b"PK\x01\x02")
    encrypted = packed[: directory + 8] + b"\x01" + packed[directory + 9 :]
    assert "is encrypted" in refused(tmp_path, encrypted, "a.zip")
    broken = packed[:60] + b"\x00\x01\x02" * 20 + packed[120:]
    assert "cannot be unpacked" in refused(tmp_path, broken, "a.zip")
    assert "cannot be unpacked" in refused(tmp_path, packed[: len(packed) // 2], "a.zip")


# Encodings

UMLAUTS = [{"role": "user", "content": "Grüße, 日本 🦉"}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    content = json.dumps(UMLAUTS, ensure_ascii=False).encode(encoding)
    found = imported(tmp_path, "a.json", content)
    assert (said(found.trees[0]), found.problems) == ([("user", "Grüße, 日本 🦉")], ())


def test_a_first_line_that_is_damaged_costs_itself(tmp_path: Path) -> None:
    found = imported(tmp_path, "a.jsonl", '{"role": "us\n' + json_lines(*TALK))
    assert len(found.trees[0].messages) == len(TALK)
    assert len(found.problems) == 1


def test_a_number_of_many_digits_stays_as_it_was_written(tmp_path: Path) -> None:
    digits = "7" * 5000
    text = json.dumps([{"messages": [{"role": "user", "content": "Hi"}], "n": 1}, {"messages": TALK}])
    found = imported(tmp_path, "a.json", text.replace('"n": 1', f'"n": {digits}').encode())
    assert len(found.trees) == 2
    assert found.problems == ()
    assert digits in written(found.trees, "jsonl")


def test_mixed_encodings_are_said(tmp_path: Path) -> None:
    lines = [json.dumps({"role": "user", "content": text}, ensure_ascii=False) for text in ("Grüße 1", "Grüße 2")]
    found = imported(tmp_path, "a.jsonl", lines[0].encode() + b"\n" + lines[1].encode("latin-1"))
    assert [message.text for message in found.trees[0].messages] == ["Grüße 1", "Grüße 2"]
    assert found.problems == ("1 of 2 lines are not UTF-8; they were read as Latin-1",)


def test_lone_surrogates_are_replaced_everywhere(tmp_path: Path) -> None:
    text = '[{"role": "user", "content": "a\\ud800", "name": "\\udc00", "x\\ud800": ["\\ud800"]}]'
    message = imported(tmp_path, "a.json", text).trees[0].messages[0]
    assert message.text == "a\ufffd"
    assert json.dumps([message.foreign], ensure_ascii=False).encode("utf-8")


def test_control_characters_stay_in_the_data_and_out_of_every_line(tmp_path: Path) -> None:
    one = chatgpt(title="\x1b[2J\u202eevil\x07")
    one["mapping"]["q1"]["parent"] = "gone"
    one["mapping"]["q1"]["message"]["content"]["parts"] = ["\x1b]0;x\x07 red"]
    found = imported(tmp_path, "a.json", [one])
    assert found.trees[0].title == "\x1b[2J\u202eevil\x07"
    assert any(message.text == "\x1b]0;x\x07 red" for message in found.trees[0].messages)
    assert found.problems
    for line in found.problems:
        assert not any(unicodedata.category(character) == "Cc" or character == "\u202e" for character in line)


# Trees


def test_circles_missing_parents_and_a_missing_tip(tmp_path: Path) -> None:
    one = chatgpt(current_node="nowhere")
    one["mapping"]["q2"]["parent"] = "gone"
    one["mapping"]["x"] = node("x", "y", "user", "X")
    one["mapping"]["y"] = node("y", "x", "assistant", "Y")
    one["mapping"]["z"] = node("z", "z", "assistant", "Z")
    found = imported(tmp_path, "a.json", [one, chatgpt()])
    assert len(found.trees) == 2
    assert is_whole(found.trees[0])
    assert {message.text for message in found.trees[0].messages} >= {"X", "Y", "Z", "[image]\nAnd this?"}
    assert children(found.trees[0], "X") == ["Y"]
    assert [line.split(": ", 1)[1] for line in found.problems] == [
        "1 message has no parent; put behind the message before",
        "2 messages have themselves among their ancestors; put behind the message before",
        "the message that it showed last is missing; it ends at the last one there is",
    ]


def test_steps_in_a_circle_end(tmp_path: Path) -> None:
    one = chatgpt()
    for ident, parent in (("t", "o"), ("r", "t"), ("c", "r"), ("o", "c")):
        one["mapping"][ident]["parent"] = parent
    tree = imported(tmp_path, "a.json", [one]).trees[0]
    assert is_whole(tree)
    assert "2" in [message.text for message in tree.messages]


@pytest.mark.parametrize("shape", ["chain", "star", "backwards", "circles", "orphans"])
def test_many_messages_of_any_shape_take_no_time(tmp_path: Path, shape: str) -> None:
    count = 4000
    parents = {
        "chain": lambda n: str(n - 1) if n else None,
        "star": lambda n: "0" if n else None,
        "backwards": lambda n: str(n + 1) if n + 1 < count else None,
        "circles": lambda n: str(n ^ 1),
        "orphans": lambda n: f"gone {n}",
    }
    nodes = {str(n): node(str(n), parents[shape](n), "user" if n % 2 else "tool", f"m{n}") for n in range(count)}
    content = json.dumps([{"mapping": nodes, "current_node": "1"}])
    with within(SECONDS):
        tree = imported(tmp_path, "a.json", content).trees[0]
    assert is_whole(tree)
    assert len([message for message in tree.messages if message.role == "user"]) == count // 2


def test_too_many_messages_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exlchat.chat.exchange import mending

    monkeypatch.setattr(mending, "MESSAGES", 3)
    found = imported(tmp_path, "a.json", [{"messages": TALK}, {"messages": TALK[:3]}])
    assert (len(found.trees), found.lost) == (1, 1)
    assert found.problems == ("conversation 1: left out: it has 5 messages; at most 3 are read",)


def test_lines_about_problems_are_bounded(tmp_path: Path) -> None:
    found = imported(tmp_path, "a.jsonl", json_lines(TALK[3]) + '{"broken\n' * 500 + json_lines(TALK[4]))
    assert len(found.trees[0].messages) == 2
    assert len(found.problems) == limits.PROBLEMS + 1
    assert found.problems[-1] == f"and {500 - limits.PROBLEMS} more problems"


# Times


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        float("nan"),
        float("inf"),
        -1,
        0,
        1e300,
        10**400,
        "",
        "soon",
        "2024-13-45",
        "9999999-1-1 @1h 1m 1s",
        [],
        {},
    ],
)
def test_what_is_no_time(value: object) -> None:
    assert seconds_of(value) is None


@pytest.mark.parametrize(
    "value", [1700000000, 1700000000.0, "1700000000", 1700000000000, 1700000000000000, 17 * 10**17]
)
def test_seconds_to_nanoseconds(value: object) -> None:
    assert seconds_of(value) == 1700000000.0


def test_a_conversation_without_times_has_those_of_its_file(tmp_path: Path) -> None:
    text = json.dumps([chatgpt(create_time=float("nan"), update_time=float("inf"))])
    assert "NaN" in text
    tree = imported(tmp_path, "a.json", text).trees[0]
    assert abs(tree.created_at - time.time()) < 60
    assert all(message.created_at > 0 for message in tree.messages)


# Anything at all

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["user", "a1", "all"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
SILLY = [
    {"user_name": "A", "character_name": "B", "chat_metadata": {}},
    {"name": "A", "is_user": True, "is_system": False, "send_date": 1, "mes": "Hi", "extra": {}},
    {
        "name": "B",
        "is_user": False,
        "mes": "Yo",
        "swipes": ["x", "Yo"],
        "swipe_id": 1,
        "swipe_info": [{}, {"extra": {}}],
    },
]
SAMPLES: list[Any] = [
    [chatgpt()],
    [claude_ai()],
    [open_webui()],
    {"messages": TALK},
    [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}],
    SILLY,
    {
        "internal": [["a", "b"], ["c", "d"]],
        "visible": [["a", "b"], ["c", "d"]],
        "metadata": {"assistant_1": {"versions": [{"content": "e"}, {"content": "d"}], "current_version_index": 1}},
    },
    {"system_prompt": "s", "context": [["a", "b"], ["c", None]]},
    {"session_uuid": "s", "history": [{"author": "user", "text": "Hi"}], "settings": {"roles": ["A"]}},
]


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key of it."""
    found = []
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += places_in(inner)
    return found


@hypothesis_settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_in_any_place_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    sample = copy.deepcopy(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        places = places_in(sample)
        if places:
            holder, key = data.draw(st.sampled_from(places))
            holder[key] = data.draw(VALUES)
    by_line = isinstance(sample, list) and bool(sample) and "chat_metadata" in str(sample[0])
    found = imported_or_refused(tmp_path, "a", json_lines(*sample) if by_line else json.dumps(sample))
    if isinstance(found, str):
        assert "\n" not in found
        return
    assert all("\n" not in line for line in found.problems)
    for tree in found.trees:
        assert is_whole(tree)
    again = imported(tmp_path, "b.jsonl", written(found.trees, "jsonl").encode("utf-8")) if found.trees else None
    assert again is None or again.trees == found.trees


@hypothesis_settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_bytes_that_were_changed_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    texts = [*(json.dumps(sample).encode() for sample in SAMPLES), AICHAT.encode(), json_lines(*SILLY).encode()]
    packed = archive("conversations.json", texts[0])
    content = bytearray(data.draw(st.sampled_from([*texts, packed, packed])))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not content:
            return
    found = imported_or_refused(tmp_path, "a", bytes(content))
    if isinstance(found, str):
        assert "\n" not in found
        return
    assert all(is_whole(tree) for tree in found.trees if tree.messages)

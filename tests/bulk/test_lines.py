"""What a line of a run asks for, and what is no such line."""

from __future__ import annotations

import json

import pytest

from exlchat.bulk.lines import CHAT, COMPLETIONS, SCORE, Lines, LinesError, in_reading_order, is_plain

BATCH = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "any", "prompt": "Once", "max_tokens": 5},
}


def jsonl(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def test_the_three_kinds_of_lines() -> None:
    lines = Lines(
        "in.jsonl",
        jsonl(
            BATCH,
            {"custom_id": "b", "url": CHAT, "body": {"messages": []}},
            {"id": "c", "messages": [{"role": "user", "content": "hi"}], "seed": 3},
            {"prompt": "hi", "max_tokens": 2},
        ),
        plain=False,
    )
    assert [(one.id, one.url, dict(one.body)) for one in map(lines.__getitem__, range(4))] == [
        ("a", COMPLETIONS, BATCH["body"]),
        ("b", CHAT, {"messages": []}),
        ("c", CHAT, {"messages": [{"role": "user", "content": "hi"}], "seed": 3}),
        ("request-4", CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    ]


def test_plain_text_is_a_message_a_line_and_empty_lines_count_for_their_numbers() -> None:
    lines = Lines("in.txt", "\ufefffirst\r\n\n  zweite Zeile: ü \n".encode(), plain=True)
    assert [(one.number, one.id, one.body["messages"][0]["content"]) for one in (lines[0], lines[1])] == [
        (1, "request-1", "first"),
        (3, "request-3", "zweite Zeile: ü"),
    ]


def test_texts_to_be_scored() -> None:
    lines = Lines("in.jsonl", jsonl({"id": 7, "text": "a b"}, {"prompt": "c"}), plain=False, score=True)
    assert [(one.id, one.url, dict(one.body)) for one in (lines[0], lines[1])] == [
        ("7", SCORE, {"text": "a b"}),
        ("request-2", SCORE, {"text": "c"}),
    ]


@pytest.mark.parametrize(
    ("name", "data", "plain"),
    [
        ("a.jsonl", b"what", False),
        ("A.NDJSON", b"what", False),
        ("a.txt", b'{"a": 1}', True),
        ("-", b'\n {"a": 1}', False),
        ("questions", b"what is this", True),
    ],
)
def test_what_kind_a_file_is(name: str, data: bytes, plain: bool) -> None:
    assert is_plain(name, data) is plain


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"prompt": "a"}\n{"prompt": "b" "c"}\n', "in.jsonl: line 2, column 16: not JSON: Expecting ',' delimiter"),
        (b'{"prompt": "a"}\n\n[1]\n', "line 3: is no object"),
        (b"what is this\n", "line 1, column 1: not JSON"),
        (b'{"prompt": NaN}\n', "line 1: not JSON"),
        (b'{"prompt": "\xff"}\n', "UTF-8"),
        (b"{" * 2000, "line 1"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested deeper"),
        (b"\n\n", "no line that asks"),
        (b"", "no line that asks"),
        (jsonl({"prompt": [1, 2]}), "no prompt that is a text"),
        (jsonl({"temperature": 1}), "no messages"),
        (jsonl({**BATCH, "url": "/v1/embeddings"}), "'/v1/embeddings'"),
        (jsonl({**BATCH, "url": ["\x1b[2J"]}), "there are /v1/chat"),
        (jsonl({**BATCH, "method": "GET"}), "another method"),
        (jsonl({**BATCH, "body": []}), "its body is no object"),
        (jsonl({**BATCH, "custom_id": ""}), "its custom_id"),
        (jsonl({**BATCH, "custom_id": "a" * 513}), "its custom_id"),
        (jsonl({**BATCH, "custom_id": "\ud800"}), "its custom_id"),
        (jsonl({**BATCH, "custom_id": True}), "its custom_id"),
        (jsonl(BATCH, {"prompt": "x"}, BATCH), "line 3: 'a' is the custom_id of line 1, too"),
        (jsonl({"custom_id": "request-2", "prompt": "x"}, {"prompt": "y"}), "line 2: 'request-2'"),
    ],
)
def test_what_is_no_request_is_named_in_one_line(data: bytes, said: str) -> None:
    with pytest.raises(LinesError) as caught:
        Lines("in.jsonl", data, plain=False)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_plain_text_is_utf_8() -> None:
    with pytest.raises(LinesError, match=r"in\.txt: line 2, byte 3: not UTF-8"):
        Lines("in.txt", b"one\nab\xe9\n", plain=True)


def test_only_texts_are_scored() -> None:
    for value in (BATCH, {"messages": []}, {"text": ""}):
        with pytest.raises(LinesError, match="no text to be scored"):
            Lines("in.jsonl", jsonl(value), plain=False, score=True)


def test_a_digest_is_of_what_is_asked_and_of_nothing_else() -> None:
    lines = Lines(
        "in.jsonl", jsonl({"id": 1, "prompt": "a", "seed": 1}, {"seed": 1, "prompt": "a"}, {"prompt": "a"}), plain=False
    )
    assert lines.digests[0] == lines.digests[1] != lines.digests[2]


def test_what_begins_alike_is_asked_together() -> None:
    def asked(system: str, text: str) -> dict[str, object]:
        return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}

    lines = Lines("in", jsonl(asked("A", "1"), asked("B", "1"), asked("A", "2"), asked("B", "2")), plain=False)
    assert in_reading_order(lines, [0, 1, 2, 3]) == [0, 2, 1, 3]
    assert in_reading_order(lines, [3, 1]) == [1, 3]

"""llm's database, in both of its schemas, as its documentation prints them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.reading import detect, read
from tests.chat.exchange.trees import children, imported_or_refused, is_whole, said, with_text

LEGACY = """
CREATE TABLE "conversations" ("id" TEXT PRIMARY KEY, "name" TEXT, "model" TEXT);
CREATE TABLE "responses" ("id" TEXT PRIMARY KEY, "model" TEXT, "prompt" TEXT, "system" TEXT, "prompt_json" TEXT,
  "options_json" TEXT, "response" TEXT, "response_json" TEXT, "conversation_id" TEXT REFERENCES "conversations"("id"),
  "duration_ms" INTEGER, "datetime_utc" TEXT, "input_tokens" INTEGER, "output_tokens" INTEGER, "token_details" TEXT,
  "schema_id" TEXT, "resolved_model" TEXT, "reasoning" TEXT);
CREATE VIRTUAL TABLE "responses_fts" USING FTS5 ("prompt", "response", content="responses");
CREATE TABLE "fragments" ("id" INTEGER PRIMARY KEY, "hash" TEXT, "content" TEXT, "datetime_utc" TEXT, "source" TEXT);
CREATE TABLE "prompt_fragments" ("response_id" TEXT, "fragment_id" INTEGER, "order" INTEGER,
  PRIMARY KEY ("response_id", "fragment_id", "order"));
"""
THREADS = """
CREATE TABLE "messages" ("hash" TEXT PRIMARY KEY, "parent_hash" TEXT, "role" TEXT, "provider_metadata" TEXT);
CREATE TABLE "parts" ("id" INTEGER PRIMARY KEY, "message_hash" TEXT, "position" INTEGER, "type" TEXT,
  "tool_name" TEXT, "text" TEXT, "payload" TEXT);
CREATE TABLE "threads" ("id" TEXT PRIMARY KEY, "name" TEXT, "tip_message_hash" TEXT, "forked_from" TEXT,
  "datetime_utc" TEXT);
CREATE TABLE "turns" ("id" TEXT PRIMARY KEY, "thread_id" TEXT, "parent_message_hash" TEXT, "tip_message_hash" TEXT,
  "model" TEXT, "resolved_model" TEXT, "options_json" TEXT, "schema_id" TEXT, "input_tokens" INTEGER,
  "output_tokens" INTEGER, "token_details" TEXT, "duration_ms" INTEGER, "datetime_utc" TEXT);
"""


def add(db: sqlite3.Connection, table: str, **fields: Any) -> None:
    names = ", ".join(f'"{name}"' for name in fields)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(fields))})", tuple(fields.values()))


def database(path: Path, *schemas: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> Path:
    with closing(sqlite3.connect(path)) as db:
        for schema in schemas:
            db.executescript(schema)
        for table, fields in rows:
            add(db, table, **fields)
        db.commit()
    return path


def response(ident: str, conversation: str | None, prompt: str, answer: str, **more: Any) -> tuple[str, dict[str, Any]]:
    fields = {"id": ident, "model": "gpt-4o", "prompt": prompt, "response": answer, "conversation_id": conversation}
    return "responses", {**fields, "datetime_utc": f"2025-02-16T22:34:{ident}.5+00:00", **more}


OLD = [
    ("conversations", {"id": "c1", "name": "Pelicans", "model": "gpt-4o"}),
    ("fragments", {"id": 7, "content": "A whole novel."}),
    ("prompt_fragments", {"response_id": "01", "fragment_id": 7, "order": 0}),
    response("01", "c1", "A name?", "Percy.", system="Be brief.", options_json='{"temperature": 0.5}', input_tokens=8),
    response("02", "c1", "And one more?", "<think>W.</think>Wallace.", system="Be brief."),
    response("03", None, "Hi", "Hello.", reasoning="They greet.", response_json='{"huge": 1}'),
]


def test_the_schema_until_031(tmp_path: Path) -> None:
    path = database(tmp_path / "logs.db", LEGACY, rows=OLD)
    assert detect(path) == "llm"
    found = read(path)
    assert found.problems == ()
    first, second = found.trees
    assert said(first) == [
        ("system", "Be brief."),
        ("user", "A whole novel.\nA name?"),
        ("assistant", "Percy."),
        ("user", "And one more?"),
        ("assistant", "Wallace."),
    ]
    assert first.title == "Pelicans"
    answer = with_text(first, "Percy.")
    assert answer.created_at == datetime(2025, 2, 16, 22, 34, 1, 500000, UTC).timestamp()
    assert answer.foreign == {"model": "gpt-4o", "llm": {"input_tokens": 8, "options": {"temperature": 0.5}}}
    assert with_text(first, "Wallace.").thinking == "W."
    assert said(second) == [("user", "Hi"), ("assistant", "Hello.")]
    assert second.messages[1].thinking == "They greet."


def message(ident: str, parent: str | None, role: str, text: str = "", **more: str) -> list[tuple[str, dict[str, Any]]]:
    rows: list[tuple[str, dict[str, Any]]] = [("messages", {"hash": ident, "parent_hash": parent, "role": role})]
    parts = [*more.items(), *([("text", text)] if text else [])]
    for position, (kind, content) in enumerate(parts):
        column = "payload" if kind.startswith("tool") or content.startswith("{") else "text"
        rows.append(("parts", {"message_hash": ident, "position": position, "type": kind, column: content}))
    return rows


def turn(ident: str, thread: str, parent: str, tip: str, model: str) -> tuple[str, dict[str, Any]]:
    fields = {"id": ident, "thread_id": thread, "parent_message_hash": parent, "tip_message_hash": tip, "model": model}
    return "turns", {**fields, "datetime_utc": f"2026-08-01T10:00:0{ident}+00:00", "output_tokens": 3}


NEW = [
    *message("s", None, "system", "Be brief."),
    *message("u1", "s", "user", '{"text_ref": [{"fragment": 7}, {"literal": " A name?"}]}'),
    *message("a1", "u1", "assistant", "Percy.", reasoning="P."),
    *message("u2", "a1", "user", "The time?"),
    *message("a2", "u2", "assistant", tool_call='{"name": "time", "arguments": {}}'),
    *message("u3", "a2", "user", tool_result='{"output": "noon"}'),
    *message("a3", "u3", "assistant", "Noon."),
    *message("a4", "u2", "assistant", "No idea."),
    (
        "threads",
        {"id": "c1", "name": "Pelicans", "tip_message_hash": "a3", "datetime_utc": "2026-08-01T10:00:00+00:00"},
    ),
    ("threads", {"id": "t2", "name": "Fork", "tip_message_hash": "a1", "forked_from": "c1"}),
    turn("1", "c1", "u1", "a1", "gpt-4o"),
    turn("2", "c1", "u2", "a4", "small"),
    turn("3", "c1", "u2", "a2", "gpt-4o"),
    turn("4", "c1", "u3", "a3", "gpt-4o"),
]


def test_the_schema_from_032_on_keeps_the_tree_and_is_read_once(tmp_path: Path) -> None:
    found = read(database(tmp_path / "logs.db", LEGACY, THREADS, rows=[*OLD, *NEW]))
    assert found.problems == ()
    assert [tree.title for tree in found.trees] == ["Pelicans", "Fork", None]
    tree = found.trees[0]
    assert is_whole(tree)
    assert said(tree) == [
        ("system", "Be brief."),
        ("user", "A whole novel. A name?"),
        ("assistant", "Percy."),
        ("user", "The time?"),
        ("assistant", "Noon."),
    ]
    assert children(tree, "The time?") == ["No idea.", "Noon."]
    assert with_text(tree, "Percy.").thinking == "P."
    assert with_text(tree, "No idea.").foreign["model"] == "small"
    assert with_text(tree, "No idea.").created_at == datetime(2026, 8, 1, 10, 0, 2, tzinfo=UTC).timestamp()
    steps = with_text(tree, "Noon.").foreign["steps"]
    assert [step["type"] for step in steps] == ["tool_call", "tool_result"]
    assert steps[1]["payload"] == {"output": "noon"}
    assert said(found.trees[1]) == said(tree)[:3]


def test_nothing_is_written_beside_the_database(tmp_path: Path) -> None:
    path = database(tmp_path / "logs.db", LEGACY, rows=OLD)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    before = (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(tmp_path))
    os.chmod(tmp_path, 0o500)
    try:
        assert len(read(path).trees) == 2
    finally:
        os.chmod(tmp_path, 0o700)
    assert (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(tmp_path)) == before


def test_changes_that_wait_are_said(tmp_path: Path) -> None:
    path = database(tmp_path / "logs.db", LEGACY, rows=OLD)
    (tmp_path / "logs.db-wal").write_bytes(b"x")
    assert "logs.db-wal holds changes" in read(path).problems[0]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("CREATE TABLE x (y)", "it is a database, but not llm's logs.db"),
        (
            "CREATE VIEW responses AS WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id FROM n) SELECT * FROM n",
            "it is a database, but not llm's logs.db",
        ),
        (
            "CREATE TABLE responses (id, response AS (hex(zeroblob(9999999))))",
            "its table responses has computed columns",
        ),
    ],
)
def test_a_database_that_would_compute_is_refused(tmp_path: Path, statements: str, reason: str) -> None:
    path = database(tmp_path / "a.db", statements, rows=[])
    with pytest.raises(ExchangeError, match=reason):
        read(path)


def test_circles_of_messages_end(tmp_path: Path) -> None:
    rows = [
        *message("a", "b", "user", "A"),
        *message("b", "a", "assistant", "B"),
        ("threads", {"id": "t", "tip_message_hash": "b"}),
    ]
    found = read(database(tmp_path / "logs.db", THREADS, rows=rows))
    assert is_whole(found.trees[0])
    assert "themselves among their ancestors" in found.problems[0]


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    content = bytearray(database(tmp_path / "logs.db", LEGACY, rows=OLD).read_bytes())
    for start in (30, 100, 4096, 9000):
        damaged = bytearray(content)
        damaged[start : start + 200] = b"\xff" * 200
        found = imported_or_refused(tmp_path, "damaged.db", bytes(damaged))
        assert not isinstance(found, str) or found.startswith(f"{tmp_path / 'damaged.db'} cannot be ")
    cut = imported_or_refused(tmp_path, "damaged.db", bytes(content[:5000]))
    assert isinstance(cut, str)
    assert "\n" not in cut


@hypothesis_settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_database_with_changed_bytes_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = tmp_path / "whole.db"
    if not whole.exists():
        database(whole, LEGACY, THREADS, rows=[*OLD, *NEW])
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(16, len(content) - 8))
        content[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    found = imported_or_refused(tmp_path, "changed.db", bytes(content))
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert all(is_whole(tree) for tree in found.trees)


@pytest.mark.parametrize("column", ["id", "conversation_id", "datetime_utc", "model"])
def test_older_databases_lack_columns(tmp_path: Path, column: str) -> None:
    rows = [(table, {name: value for name, value in row.items() if name != column}) for table, row in OLD]
    schema = LEGACY.replace(f'"{column}" TEXT', '"spare" TEXT')
    path = database(tmp_path / "logs.db", schema, rows=[row for row in rows if row[0] == "responses"])
    assert sum(len(tree.messages) for tree in read(path).trees) >= 7

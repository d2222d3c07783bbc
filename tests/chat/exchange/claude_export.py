"""An export of claude.ai, in the shape in which it comes: blocks, attachments, parents, an edited question."""

from __future__ import annotations

from typing import Any

ROOT = "00000000-0000-4000-8000-000000000000"


def block(kind: str, **fields: Any) -> dict[str, Any]:
    times = {"start_timestamp": "2026-03-01T10:00:00.000000Z", "stop_timestamp": "2026-03-01T10:00:01.000000Z"}
    return {**times, "flags": None, "type": kind, **fields}


def text(said: str) -> dict[str, Any]:
    return block("text", text=said, citations=[])


def message(ident: str, parent: str, sender: str, second: int, *blocks: Any, **fields: Any) -> dict[str, Any]:
    at = f"2026-03-01T10:00:{second:02}.000000Z"
    body = {"uuid": ident, "text": "", "content": list(blocks), "sender": sender, "created_at": at, "updated_at": at}
    return {**body, "attachments": [], "files": [], "parent_message_uuid": parent, **fields}


def claude_ai(**more: Any) -> dict[str, Any]:
    report = {
        "file_name": "report.md",
        "file_size": 12,
        "file_type": "md",
        "extracted_content": "# Sums\n```\n1\n```\n",
    }
    paste = {"file_name": "", "file_size": 9, "file_type": "txt", "extracted_content": "Long words."}
    call = block("tool_use", id="toolu_1", name="repl", input={"code": "1 + 1"}, message="Counting")
    result = block("tool_result", tool_use_id="toolu_1", name="repl", content=[{"type": "text", "text": "2"}])
    return {
        "uuid": "c1",
        "name": "Sums",
        "summary": "",
        "created_at": "2026-03-01T10:00:00.000000Z",
        "updated_at": "2026-03-01T11:00:00.000000Z",
        "account": {"uuid": "me"},
        "chat_messages": [
            message("q1", ROOT, "human", 1, text("What is 1 + 1?")),
            message("a1", "q1", "assistant", 2, text("3")),
            message("q2", ROOT, "human", 3, text("And this?"), attachments=[report], files=[{"file_name": "owl.png"}]),
            message(
                *("a2", "q2", "assistant", 4),
                *(block("thinking", thinking="One and one.", summaries=[], cut_off=False), text("Let me count.")),
                *(call, result, text("It is 2.")),
            ),
            message("q3", "a2", "human", 5, attachments=[paste]),
        ],
        **more,
    }

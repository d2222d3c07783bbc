"""Heads and bodies of replies, as ASGI messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


async def send_head(send: Send, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    """`headers` have small names."""
    # nginx would else hold a stream back until it has a few kilobytes of it.
    told = {"content-type": content_type, "cache-control": "no-store", "x-accel-buffering": "no", **headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_body(send: Send, text: str, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": text.encode("utf-8"), "more_body": more})


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    body = json.dumps(value)
    await send_head(send, status, JSON, {"content-length": str(len(body)), **(headers or {})})
    await send_body(send, body, more=False)

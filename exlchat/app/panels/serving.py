"""What other programs ask the model of this chat: lines and rows of their requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exlchat.app.serving.shared import SharedServer
    from exlchat.server.record import Record

_NAME_CELLS = 40
_MOST_ENDED = 12


def serving_line(server: SharedServer) -> str:
    """For the status line; empty while it is off."""
    if not server.place:
        return ""
    many = len(server.under_way())
    return f"serving {many} {'request' if many == 1 else 'requests'}" if many else "serving"


def serving_rows(server: SharedServer) -> Iterator[tuple[str, str]]:
    """Where it is, what runs and what has ended."""
    yield "Other programs", ""
    yield "Address", server.place or "off; /serve lets them ask"
    under_way = server.under_way()
    yield f"Running ({len(under_way)})", ""
    for record in under_way:
        yield who(record), progress(record)
    ended = server.ended()[:_MOST_ENDED]
    if ended:
        yield "Ended", ""
    for record in ended:
        yield who(record), result(record)


def who(record: Record) -> str:
    """What was asked for, and by whose key."""
    asked = record.model or record.path
    return printable(one_line(f"{asked} · {record.key}" if record.key else asked, _NAME_CELLS))


def progress(record: Record) -> str:
    """How far one is that runs."""
    if record.new_tokens:
        seconds = time.monotonic() - record.began
        return f"{record.new_tokens:,} tokens in {seconds:.1f} s"
    if record.read_tokens < record.prompt_tokens:
        return f"reading {record.read_tokens:,} of {record.prompt_tokens:,} tokens"
    return "begins" if record.prompt_tokens else "waits"


def result(record: Record) -> str:
    """How one ended."""
    parts = [
        f"{record.new_tokens:,} tokens in {record.seconds:.1f} s" if record.new_tokens else f"{record.seconds:.1f} s"
    ]
    parts += [f"status {record.status}"] if record.status != 200 else []
    parts += ["the client left"] if record.left else []
    parts += [record.trouble] if record.trouble else []
    return printable(one_line(" · ".join(parts), 200))

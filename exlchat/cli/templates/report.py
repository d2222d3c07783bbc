"""A prompt on standard output, as a table and as JSON."""

from __future__ import annotations

from typing import Any

from exlchat.chat.prompt.layout import MessageSpan, PromptLayout
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.info import ModelInfo
from exlchat.untrusted.text import one_line

_WIDTH = 100


def as_json(layout: PromptLayout, form: PromptFormat, info: ModelInfo) -> dict[str, Any]:
    """All of it; `tokens` has the text of each id."""
    return {
        "model": info.name,
        "format": form.name,
        "text": layout.text,
        "ids": list(layout.ids),
        "tokens": list(layout.pieces),
        "messages": [
            {"role": one.role, "start": one.start, "end": one.end, "first_token": one.first, "end_token": one.last}
            for one in layout.messages
        ],
    }


def as_text(layout: PromptLayout, form: PromptFormat, info: ModelInfo) -> str:
    """The prompt as it is, then a line for each message, then a line for each token."""
    lines = [
        f"{one_line(form.name, 80)}, tokens of {one_line(info.name, 80)}: {len(layout.ids)} tokens, "
        f"{len(layout.text)} characters",
        "",
        layout.text,
        "",
        f"{'message':>9}  {'role':<9}  {'characters':>15}  {'tokens':>13}  text",
    ]
    lines += [_message_line(number, one, layout.text) for number, one in enumerate(layout.messages)]
    lines += ["", f"{'token':>9}  {'id':>9}  {'message':>7}  text"]
    owner = {
        token: number
        for number, one in enumerate(layout.messages)
        if one.first is not None and one.last is not None
        for token in range(one.first, one.last)
    }
    for number, (token, piece) in enumerate(zip(layout.ids, layout.pieces, strict=True)):
        lines.append(f"{number:>9}  {token:>9}  {owner.get(number, ''):>7}  {_quoted(piece)}")
    return "\n".join(lines) + "\n"


def _message_line(number: int, one: MessageSpan, text: str) -> str:
    said = _quoted(text[one.start : one.end]) if one.start is not None else "(changed by the format, or left out)"
    places = _range(one.start, one.end), _range(one.first, one.last)
    return f"{number:>9}  {one.role:<9}  {places[0]:>15}  {places[1]:>13}  {said}"


def _range(first: int | None, last: int | None) -> str:
    return "-" if first is None or last is None else f"{first} to {last}"


def _quoted(text: str) -> str:
    quoted = repr(text)
    return quoted if len(quoted) <= _WIDTH else quoted[: _WIDTH - 1] + "…"

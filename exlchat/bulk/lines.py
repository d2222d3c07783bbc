"""The lines of a run: what each asks for, checked before the first token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.api.fields import MOST_BYTES
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import one_line, storable

CHAT, COMPLETIONS, SCORE = "/v1/chat/completions", "/v1/completions", "/score"
_SHOWN = 80
_LONGEST_ID = 512


class LinesError(Exception):
    """One line that names the file, where in it, what is wrong there and how to mend it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A request.

    Args:
        number: of the line, from 1.
        id: by which its answer is found; the file's `custom_id`, or made of the number.
        url: the endpoint that would answer it.
        body: what that would be sent.
    """

    number: int
    id: str
    url: str
    body: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of all that it asks for."""
        asked = json.dumps([self.url, self.body], sort_keys=True).encode()
        return hashlib.sha256(asked).hexdigest()[:32]


class Lines:
    """The requests of a file, by their place among them. Kept as bytes: a million would be too many as values.

    Three kinds of lines: those of OpenAI's batches (`custom_id`, `method`, `url`, `body`); the fields of a body alone,
    with `messages`, or with `prompt`, which is one message; and plain text, a message a line.

    Args:
        name: of the file, for errors.
        data: what it holds.
        plain: whether lines are plain text; else each is an object of JSON.
        score: whether each is a text whose tokens are asked about, instead of a request for an answer.

    Raises:
        LinesError: a line cannot be read, or two have one id.
    """

    def __init__(self, name: str, data: bytes, *, plain: bool, score: bool = False) -> None:
        self._name, self._plain, self._score = one_line(storable(name), 200), plain, score
        self._lines = [
            (number, line.strip())
            for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
            if line.strip()
        ]
        if not self._lines:
            raise LinesError(f"{self._name}: has no line that asks for anything; put a request on each")
        self.places: dict[str, int] = {}
        """Of each id."""
        self.digests: list[str] = []
        for place in range(len(self)):
            line = self[place]
            earlier = self.places.setdefault(line.id, place)
            if earlier != place:
                raise self._wrong(
                    line.number,
                    f"{one_line(line.id, _SHOWN)!r} is the custom_id of line {self._lines[earlier][0]}, too; "
                    "give each its own",
                )
            self.digests.append(line.digest)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: int) -> Line:
        number, data = self._lines[place]
        if self._plain:
            return self._told(number, f"request-{number}", {"prompt": self._text(number, data)})
        value = self._object(number, data)
        if "url" in value or "body" in value:
            return self._of_batch(number, value)
        ident = self._id(number, value)
        return self._told(number, ident, {key: one for key, one in value.items() if key not in ("custom_id", "id")})

    def size(self, place: int) -> int:
        """Bytes of a line: as good a guess as any of how long it takes to read."""
        return len(self._lines[place][1])

    def _of_batch(self, number: int, value: Mapping[str, Any]) -> Line:
        url, body = value.get("url", CHAT), value.get("body")
        if self._score:
            raise self._wrong(number, 'has no text to be scored; write {"text": "..."}')
        if url not in (CHAT, COMPLETIONS):
            raise self._wrong(number, f"asks {one_line(str(url), _SHOWN)!r}; there are {CHAT} and {COMPLETIONS}")
        if value.get("method", "POST") != "POST":
            raise self._wrong(number, "has another method than POST; leave it out")
        if not isinstance(body, dict):
            raise self._wrong(number, 'its body is no object; write what is sent, as {"messages": [...]}')
        return Line(number, self._id(number, value), url, body)

    def _told(self, number: int, ident: str, fields: Mapping[str, Any]) -> Line:
        """A line of our short forms."""
        if self._score:
            text = fields.get("text", fields.get("prompt"))
            if not isinstance(text, str) or not text:
                raise self._wrong(number, 'has no text to be scored; write {"text": "..."}')
            return Line(number, ident, SCORE, {"text": text})
        if "messages" in fields:
            return Line(number, ident, CHAT, fields)
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            raise self._wrong(
                number,
                f'has no messages, and no prompt that is a text; for ids write "url": "{COMPLETIONS}" and a "body"',
            )
        rest = {key: one for key, one in fields.items() if key != "prompt"}
        return Line(number, ident, CHAT, {"messages": [{"role": "user", "content": prompt}], **rest})

    def _object(self, number: int, data: bytes) -> dict[str, Any]:
        try:
            value = read_json(data, most=MOST_BYTES)
        except JsonError as error:
            column = "" if error.place is None else f", column {error.place[1]}"
            raise LinesError(f"{self._name}: line {number}{column}: {error.problem}") from None
        if not isinstance(value, dict):
            raise self._wrong(number, 'is no object of JSON; write {"prompt": "..."}, or give plain text as FILE.txt')
        return value

    def _id(self, number: int, value: Mapping[str, Any]) -> str:
        found = value.get("custom_id", value.get("id"))
        if found is None:
            return f"request-{number}"
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        if not isinstance(found, str) or not found or len(found) > _LONGEST_ID or storable(found) != found:
            raise self._wrong(number, f"its custom_id is no text of 1 to {_LONGEST_ID} characters; give it one")
        return found

    def _text(self, number: int, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise LinesError(
                f"{self._name}: line {number}, byte {error.start + 1}: not UTF-8; save the file as UTF-8"
            ) from None

    def _wrong(self, number: int, what: str) -> LinesError:
        return LinesError(f"{self._name}: line {number}: {what}")


def is_plain(name: str, data: bytes) -> bool:
    """Whether a file has plain text in its lines: what its name says, and where that says nothing, how it begins."""
    suffix = name.lower().rpartition(".")[2]
    if suffix in ("jsonl", "ndjson", "json"):
        return False
    return suffix == "txt" or not data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def in_reading_order(lines: Lines, places: Sequence[int]) -> list[int]:
    """Places so that those that begin alike stand together, within windows of some thousand: a beginning is read once.

    Within a window the order is that of the texts; what a body says behind its messages comes after.
    """
    window = 4096
    found: list[int] = []
    for start in range(0, len(places), window):
        found += sorted(places[start : start + window], key=lambda place: (_beginning(lines[place]), place))
    return found


def _beginning(line: Line) -> str:
    """The text that its prompt begins with, as far as that can be told from here."""
    messages = line.body.get("messages")
    if not isinstance(messages, list):
        return json.dumps(line.body.get("prompt"))
    return json.dumps([[one.get("role"), one.get("content")] for one in messages if isinstance(one, dict)])

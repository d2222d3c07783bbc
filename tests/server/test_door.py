"""What comes to the door and is not let in: a 4xx in one line, and the engine has not moved."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.llm.port import Engine
from exlchat.server import answering
from exlchat.server.guard import Rules
from exlchat.server.keys import Keys, KeysError
from tests.patience import PATIENCE
from tests.server.served import CHAT, Served, serving

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "config" / "serve-keys.json")


@pytest.fixture
def locked(guide_engine: Engine, keys: Keys) -> Iterator[Served]:
    rules = Rules(hosts=("chat.example",), origins=("https://pages.example",), keys=keys, always_keys=True)
    with serving(guide_engine, rules=rules) as served:
        yield served


def assert_refused(served: Served, engine: Engine, status: int, **wrong: object) -> str:
    before = engine.cache_report().prompt_tokens  # type: ignore[attr-defined]
    body = wrong.pop("body", BODY)
    reply = served.ask(str(wrong.pop("path", CHAT)), body, **wrong)  # type: ignore[arg-type]
    assert reply.status == status, reply.body
    message = reply.json["error"]["message"]
    assert message
    assert message.isprintable()
    assert engine.cache_report().prompt_tokens == before  # type: ignore[attr-defined]
    return str(message)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"Host": "evil.example"}),
        (403, {"Host": "localhost.evil.example:80"}),
        (400, {"Host": "["}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "http://["}),
        (403, {"Origin": "http://localhost:1"}),
        (415, {"content-type": "text/plain"}),
        (415, {"content-type": "application/x-www-form-urlencoded"}),
    ],
)
def test_strangers_are_refused(guide: Served, guide_engine: Engine, status: int, headers: dict[str, str]) -> None:
    assert_refused(guide, guide_engine, status, headers=headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8765", "192.168.1.7"])
def test_this_machine_may_be_called_by_its_address(guide: Served, host: str) -> None:
    assert guide.ask("/v1/models", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (400, b"{"),
        (400, b'{"messages": [{"role": "user", "content": "Hel'),
        (400, b'{"messages": "\xff\xfe\xff"}'),
        (400, b'{"messages": [{"role": "user", "content": "\xc3"}]}'),
        (400, b"[1, 2]"),
        (400, b"null"),
        (400, b"[" * 100_000),
        (400, b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
        (400, b'{"messages": NaN}'),
        (413, b"x" * 20_000_000),
        (413, b'{"messages": "' + b"x" * 20_000_000 + b'"}'),
    ],
    ids=lambda value: None if isinstance(value, int) else f"{len(value)} bytes",
)
def test_bodies_that_are_none(guide: Served, guide_engine: Engine, status: int, body: bytes) -> None:
    assert_refused(guide, guide_engine, status, body=body)


@pytest.mark.parametrize(("count", "size"), [(101, 1), (10_000, 1), (2, 40_000)])
def test_too_much_of_headers(guide: Served, guide_engine: Engine, count: int, size: int) -> None:
    """Of a request that would be answered without them."""
    many = "".join(f"x-header-{number}: {'x' * size}\r\n" for number in range(count))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = json.dumps(BODY)
    before = guide_engine.cache_report().prompt_tokens  # type: ignore[attr-defined]
    with socket.create_connection(("127.0.0.1", guide.port), timeout=PATIENCE) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n{many}\r\n{body}".encode())
        assert connection.recv(100).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert guide_engine.cache_report().prompt_tokens == before  # type: ignore[attr-defined]
    assert guide.ask("/v1/models").status == 200


def test_half_a_body_is_not_waited_for(guide: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_SLOWEST_BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", guide.port), timeout=PATIENCE) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f'{head}Content-Length: 500\r\n\r\n{{"mess'.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


LONG = "word " * 400_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": LONG}),
        ("/tokenize", {"prompt": LONG}),
        ("/v1/token/encode", {"text": LONG}),
        ("/apply-template", {"messages": [{"role": "user", "content": LONG}]}),
        (CHAT, {**BODY, "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]}),
        (CHAT, {**BODY, "negative_prompt": LONG, "guidance_scale": 2}),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_context_holds_is_not_encoded(
    guide: Served, guide_engine: Engine, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    """The tokenizer holds up everybody while it works."""
    longest = 0
    encode = type(guide_engine).encode

    def watched(self: Engine, text: str, *, special: bool = True) -> list[int]:
        nonlocal longest
        longest = max(longest, len(text))
        return encode(self, text, special=special)

    monkeypatch.setattr(type(guide_engine), "encode", watched)
    assert_refused(guide, guide_engine, 400, path=path, body=body)
    assert longest < len(LONG)


def test_a_schema_that_cannot_be_held_is_the_clients_mistake(guide: Served, guide_engine: Engine) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}
    assert_refused(guide, guide_engine, 400, body={**BODY, "response_format": held})


@pytest.mark.parametrize("line", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST " + b"/" * 200_000])
def test_what_is_no_http(guide: Served, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guide.port), timeout=PATIENCE) as connection:
        connection.sendall(line + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert guide.ask("/v1/models").status == 200


@pytest.mark.parametrize(
    ("status", "path", "method"),
    [(404, "/", "GET"), (404, "/v1/nothing", "POST"), (405, CHAT, "GET"), (404, "/v1/models/other", "GET")],
)
def test_paths_that_there_are_not(guide: Served, guide_engine: Engine, status: int, path: str, method: str) -> None:
    assert_refused(guide, guide_engine, status, path=path, method=method, body=None if method == "GET" else BODY)


def test_a_path_says_how_it_is_asked(guide: Served) -> None:
    reply = guide.ask(CHAT)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.json["error"]["message"] == f"GET {CHAT}: ask it by POST"


# Keys


def test_a_key_is_wanted_and_known_by_its_hash_alone(locked: Served, keys: Keys, tmp_path: Path) -> None:
    assert locked.ask(CHAT, BODY).json["error"]["code"] == "invalid_api_key"
    key = keys.add("laptop")
    file = tmp_path / "config" / "serve-keys.json"
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    # The server sees a new key without being told.
    for count, headers in enumerate(({"Authorization": f"Bearer {key}"}, {"x-api-key": key}), 2):
        assert locked.ask(CHAT, BODY, headers).status == 200
        assert locked.noted(count).key == "laptop"
    keys.remove("laptop")
    assert locked.ask(CHAT, BODY, {"x-api-key": key}).status == 401


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": "exl-wrong"}, {"Authorization": "Basic abc"}, {"x-api-key": "ü"}]
)
def test_without_a_key_nothing_runs(locked: Served, guide_engine: Engine, keys: Keys, headers: dict[str, str]) -> None:
    keys.add("laptop")
    assert_refused(locked, guide_engine, 401, headers=headers)
    assert_refused(locked, guide_engine, 401, path="/v1/models", body=None, headers=headers)
    assert locked.ask("/health", headers=headers).status == 200


def test_any_key_will_do_where_there_is_none(guide: Served) -> None:
    assert guide.ask("/v1/models", headers={"Authorization": "Bearer DUMMY_KEY"}).status == 200


def test_names_of_keys(keys: Keys) -> None:
    keys.add("laptop")
    with pytest.raises(KeysError, match="laptop already"):
        keys.add("laptop")
    with pytest.raises(KeysError, match="no key phone"):
        keys.remove("phone")
    with pytest.raises(KeysError, match="empty"):
        keys.add(" \n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"keys": [7]}',
        '{"keys": [{"name": "x"}]}',
        '{"keys": [{"name": "x", "sha256": "0", "rank": "chat"}]}',
        '{"keys": [{"name": "x", "sha256": "0", "answers": 0}]}',
        "\x00",
    ],
)
def test_a_file_that_holds_no_keys_lets_nobody_in(locked: Served, tmp_path: Path, text: str) -> None:
    file = tmp_path / "config" / "serve-keys.json"
    file.parent.mkdir()
    file.write_text(text)
    reply = locked.ask("/v1/models", headers={"x-api-key": "exl-any"})
    assert reply.status == 500
    assert "choices" not in reply.json


# Pages in browsers


def test_a_page_that_was_named_may_ask(locked: Served, keys: Keys) -> None:
    page = {"Origin": "https://pages.example"}
    asked = locked.ask(CHAT, headers={**page, "Access-Control-Request-Method": "POST"}, method="OPTIONS")
    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == "https://pages.example"
    reply = locked.ask(CHAT, BODY, {**page, "x-api-key": keys.add("page"), "Host": "chat.example"})
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://pages.example"


def test_no_other_page_is_told_anything(guide: Served) -> None:
    reply = guide.ask("/v1/models", headers={"Origin": "http://evil.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert "guide" not in json.dumps(reply.json)


def test_a_request_has_a_name(guide: Served) -> None:
    assert guide.ask("/v1/models", headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    other = guide.ask("/v1/models", headers={"x-request-id": "not one\tword"}).headers["x-request-id"]
    assert other.startswith("req-")

"""The door: what of a request is looked at before anything of it is read, and what is said of it in the end."""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exlchat.api.errors import ApiError, told_error
from exlchat.server.keys import Keys
from exlchat.server.record import Record
from exlchat.server.sending import JSON, send_head, send_json
from exlchat.untrusted.text import one_line

_NAMES_HERE = ("localhost",)
_MOST_HEADERS, _LARGEST_HEAD = 100, 64 * 1024
"""uvicorn bounds only what has not come whole."""
_REQUEST_ID = re.compile(r"[\w.:-]{1,100}")
_OPEN = ("/health", "/health/live")
"""What says nothing of anybody, and is asked by what watches over servers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may ask.

    Args:
        hosts: names of this server, besides localhost and addresses in numbers. A page in a browser that had its own
            name point here comes with that name.
        origins: pages in browsers that may ask, as https://chat.example; none unless named.
        keys: of clients; `None` asks nobody for one.
        always_keys: a key is wanted though there is none yet; else where there are none, nobody is asked.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    keys: Keys | None = None
    always_keys: bool = False


class Guard:
    """Around all endpoints.

    Args:
        say: gets a line of each request, which holds nothing of what was said.
    """

    def __init__(self, app: ASGIApp, rules: Rules, say: Callable[[Record], None]) -> None:
        self._app, self._rules, self._say = app, rules, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = _Headers(scope)
        record = Record(_request_id(headers), scope["method"], scope["path"])
        scope["record"] = record
        told = self._told_to(headers, record, send)
        try:
            await self._pass(scope, headers, record, receive, told)
        except Exception as error:
            problem = told_error(error)
            if not isinstance(error, ApiError):
                record.trouble = problem.message
            if record.status == 499:
                await send_json(told, problem.status, problem.body(), problem.headers())
        finally:
            record.seconds = time.monotonic() - record.began
            self._say(record)

    async def _pass(self, scope: Scope, headers: _Headers, record: Record, receive: Receive, send: Send) -> None:
        _check_size(scope)
        self._check_host(headers)
        origin = self._check_origin(headers)
        if scope["method"] == "OPTIONS" and origin:
            asked = headers.one("access-control-request-headers") or "authorization, content-type"
            allowed = {"access-control-allow-headers": asked, "access-control-allow-methods": "GET, POST"}
            await send_head(send, 204, JSON, {**allowed, "access-control-max-age": "600"})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if scope["path"] not in _OPEN:
            self._check_key(headers, record)
        if scope["method"] == "POST" and headers.one("content-type").partition(";")[0].strip().lower() != JSON:
            # What a form of a strange page cannot send without being asked about.
            raise ApiError(415, f"the body has to be JSON; send the header content-type: {JSON}")
        await self._app(scope, receive, send)

    def _check_host(self, headers: _Headers) -> None:
        hosts = headers.all("host")
        host = _host_name(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise ApiError(400, "the request names no host, or several; send one header Host")
        if not (host in _NAMES_HERE or host in self._rules.hosts or _is_address(host)):
            shown = one_line(host, 80)
            raise ApiError(
                403, f"{shown} is no name of this server; ask it by its address, or start it with --host-name {shown}"
            )

    def _check_origin(self, headers: _Headers) -> str:
        """The page that asks; "" where none does, or one of this server."""
        origin = headers.one("origin")
        if not origin or _place(origin) == headers.one("host"):
            return ""
        if origin not in self._rules.origins:
            shown = one_line(origin, 80)
            raise ApiError(403, f"pages of {shown} may not ask this server; start it with --cors-origin {shown}")
        return origin

    def _check_key(self, headers: _Headers, record: Record) -> None:
        keys = self._rules.keys
        if keys is None or not (self._rules.always_keys or keys.all()):
            return
        given = headers.one("x-api-key") or _bearer(headers.one("authorization"))
        found = keys.find(given) if given else None
        if found is None:
            raise ApiError(
                401,
                "the key is none of this server's; send one as Authorization: Bearer KEY"
                if given
                else "this server wants a key; send one as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        record.key, record.least_rank, record.most_answers = found.name, found.rank, found.answers

    def _told_to(self, headers: _Headers, record: Record, send: Send) -> Send:
        origin = headers.one("origin")
        extra = [(b"x-request-id", record.id.encode("ascii"))]
        if origin and origin in self._rules.origins:
            extra += [(b"access-control-allow-origin", origin.encode("latin-1", "replace")), (b"vary", b"Origin")]
            extra.append((b"access-control-expose-headers", b"x-request-id, x-exlchat-ignored"))

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        return tell


class _Headers:
    def __init__(self, scope: Scope) -> None:
        self._raw: list[tuple[bytes, bytes]] = scope["headers"]

    def all(self, name: str) -> list[str]:
        wanted = name.encode("ascii")
        return [value.decode("latin-1") for key, value in self._raw if key == wanted]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "").strip()


def _check_size(scope: Scope) -> None:
    headers = scope["headers"]
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(key) + len(value) for key, value in headers)
    if len(headers) > _MOST_HEADERS or size > _LARGEST_HEAD:
        raise ApiError(
            431, f"the request has {len(headers)} headers of {size:,} bytes; at most {_MOST_HEADERS} of 64 KiB are read"
        )


def _request_id(headers: _Headers) -> str:
    """The client's own where it is a plain word, else a new one."""
    given = headers.one("x-request-id")
    return given if given.isascii() and _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"


def _place(url: str) -> str | None:
    """Host and port; `None` where there are none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def _host_name(host: str) -> str | None:
    """Without the port, in small letters; `None` where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    """Numbers are no name that somebody could have point here."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _bearer(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""

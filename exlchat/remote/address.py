"""Where a server is, and what opens it: values that are checked when they are made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

Level = Literal["ids", "text", "messages"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""What a prompt is sent as: token ids, the text of our template, or messages for the server's own template."""

MOST_ADDRESSES = 32
"""Of one name."""
_SHOWN = 200


class RemoteError(ModelError):
    """A server that cannot be used, or what it did wrong: one line that names it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Of a server, without its `/v1`.

    Args:
        path: what stands before the paths of the API, as of a proxy; "" or beginning with a slash.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Of a URL, with or without `http://` and `/v1`.

        Raises:
            RemoteError: it is none.
        """
        shown = one_line(text, _SHOWN)
        whole = text.strip() if "://" in text else f"http://{text.strip()}"
        try:
            parts = urlsplit(whole)
            port = parts.port
        except ValueError as error:
            raise RemoteError(f"{shown}: no address of a server ({error}); give one as http://127.0.0.1:8080") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or any(map(str.isspace, whole)):
            raise RemoteError(f"{shown}: no address of a server; give one as http://127.0.0.1:8080")
        if parts.username is not None or parts.password is not None:
            # Not shown: it holds a password.
            raise RemoteError("the address of the server holds a name or password; give the key by --remote-key-file")
        if parts.query or parts.fragment:
            raise RemoteError(f"{shown}: has a ? or #, which no address of a server has; leave them out")
        path = parts.path.rstrip("/").removesuffix("/v1")
        secure = parts.scheme == "https"
        return cls("https" if secure else "http", parts.hostname, port or (443 if secure else 80), path)

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return f"{self.scheme}://{host}{'' if usual else f':{self.port}'}{self.path}"

    @property
    def place(self) -> str:
        """Host and port, for a status line."""
        return self.shown.partition("://")[2]

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class Remote:
    """One server as somebody wants to use it, or several that have the same model.

    Args:
        name: what it is called; of an unnamed one its host and port.
        model: which of its models; "" takes its only or first one.
        key: sent as a bearer token; never shown.
        level: as which prompts are sent; `None` takes the best that the server can do.
        template: whether a prompt format of ours is wanted, so that prompts are rendered here.
        context: tokens, where the server does not say how many it holds.
        others: where the same model answers as well.
    """

    name: str
    address: Address
    model: str = ""
    key: str = field(default="", repr=False)
    level: Level | None = None
    template: bool = False
    context: int | None = None
    others: tuple[Address, ...] = ()

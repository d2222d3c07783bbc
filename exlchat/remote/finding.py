"""Servers that run on this machine: the ports that they usually take are asked, and nothing beyond loopback is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from exlchat.remote.address import Address, RemoteError
from exlchat.remote.fields import ServerKind
from exlchat.remote.http import Http, StatusError
from exlchat.remote.server import kind_of, models_of

PORTS = (8765, 8080, 9931, 8000, 5000, 11434, 1234)
"""exlchat serve; llama-server, twice; vLLM; TabbyAPI; ollama; LM Studio."""
_WITHIN_SECONDS = 0.3
_KEY_STATUS = (401, 403)


@dataclass(frozen=True, slots=True)
class Found:
    """A server that answered. `kind` is `None` where it tells nobody without a key."""

    address: Address
    kind: ServerKind | None
    models: tuple[str, ...]


def find(ports: Iterable[int]) -> Sequence[Found]:
    """Those at ports of this machine. All are asked at once, so that this takes no longer than the slowest."""
    asked = tuple(ports)
    with ThreadPoolExecutor(len(asked) or 1) as pool:
        return [found for found in pool.map(_at, asked) if found is not None]


def _at(port: int) -> Found | None:
    http = Http(Address("http", "127.0.0.1", port))
    try:
        entries = models_of(http, seconds=_WITHIN_SECONDS)
        return Found(http.address, kind_of(http, entries, seconds=_WITHIN_SECONDS), tuple(one["id"] for one in entries))
    except StatusError as error:
        return Found(http.address, None, ()) if error.status in _KEY_STATUS else None
    except RemoteError:
        # Nobody, or something else.
        return None

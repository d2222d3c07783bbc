"""Several servers of one model: which of them a request goes to, and what all of them have in common."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from exlchat.remote.address import Remote, RemoteError
from exlchat.remote.http import EventStream, Http, StatusError
from exlchat.remote.server import Server, look_at
from exlchat.remote.vocabulary import Vocabulary

_AN_ANSWER = 512
"""An answer that runs there holds a request up as much as so many tokens that have to be read."""
_MOST_REMEMBERED = 64
"""Prompts of each server."""
_METRICS_SECONDS = 0.3
_WAITING = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|llamacpp:requests_(?:processing|deferred)|exlchat_requests_(?:running|waiting))"
    r"(?:\{[^}\n]*\})? +([0-9.e+]+)\s*$",
    re.MULTILINE,
)
_SAMPLE = "The quick brown fox, 12,345 – « où ? » 日本\n\tdef f(x): return x"
"""Whoever has the same ids for it has the same tokenizer."""


class Spread:
    """Where requests go: to the server that has least to read of a prompt and to wait for.

    What a server was sent is remembered, because it keeps what it has read: so a conversation stays where it is.

    Args:
        servers: one or more, of one model.
    """

    def __init__(self, servers: Sequence[Http]) -> None:
        self.servers = tuple(servers)
        self._sent: dict[Http, deque[tuple[int, ...]]] = {one: deque(maxlen=_MOST_REMEMBERED) for one in servers}
        self._lock = threading.Lock()

    def stream(self, path: str, body: Mapping[str, Any], ids: Sequence[int]) -> EventStream:
        """Asked for when its first event is read. `ids` are of the prompt."""
        return EventStream(lambda: self.order(tuple(ids)), path, body)

    def order(self, ids: tuple[int, ...]) -> list[Http]:
        """The best one first, then those that take its place where it does not answer."""
        if len(self.servers) == 1:
            return list(self.servers)
        with self._lock:
            costs = {one: self._cost(one, ids) for one in self.servers}
        least = min(costs.values())
        near = [one for one in self.servers if costs[one] == least]
        waiting = _waiting(near) if len(near) > 1 else {}
        found = sorted(self.servers, key=lambda one: (costs[one], waiting.get(one, 0.0)))
        with self._lock:
            self._sent[found[0]].append(ids)
        return found

    def _cost(self, server: Http, ids: tuple[int, ...]) -> tuple[bool, int]:
        known = max((_shared(ids, sent) for sent in self._sent[server]), default=0)
        return server.failing, len(ids) - known + _AN_ANSWER * server.under_way


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens they begin with alike."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(at for at in range(most) if one[at] != other[at])


def _waiting(servers: Sequence[Http]) -> Mapping[Http, float]:
    """How many requests of anybody run or wait there; nothing of those that do not tell."""

    def count(server: Http) -> float:
        try:
            return sum(float(one) for one in _WAITING.findall(server.text("/metrics", seconds=_METRICS_SECONDS)))
        except (RemoteError, ValueError):
            return 0.0

    with ThreadPoolExecutor(len(servers)) as pool:
        return dict(zip(servers, pool.map(count, servers), strict=True))


def look_at_all(remote: Remote, servers: Sequence[Http]) -> tuple[Server, Spread]:
    """What they have in common. Those that nobody answers at are left out, and told.

    Raises:
        RemoteError: nobody answers at any, or two are not of one model.
    """

    def look(http: Http) -> Server | RemoteError:
        try:
            return look_at(replace(remote, address=http.address), http)
        except RemoteError as error:
            return error

    with ThreadPoolExecutor(len(servers)) as pool:
        looked = list(pool.map(look, servers))
    there = [(http, found) for http, found in zip(servers, looked, strict=True) if isinstance(found, Server)]
    if not there:
        raise next(found for found in looked if isinstance(found, RemoteError))
    refused = [found for found in looked if isinstance(found, StatusError)]
    if refused:
        # They are there, and something is wrong with the key or the address.
        raise refused[0]
    absent = [f"{found}; the others answer" for found in looked if isinstance(found, RemoteError)]
    (first, server), *rest = there
    for http, other in rest:
        if what := _difference(server, other):
            raise RemoteError(
                f"{http.address.shown} has another {what} than {first.address.shown}; give it a name of its own"
            )
    merged = replace(
        server,
        context=min(found.context for _, found in there),
        vocabulary=_AnyVocabulary([(http, found.vocabulary) for http, found in there]),
        notices=(*server.notices, *absent),
    )
    return merged, Spread([http for http, _ in there])


def _difference(one: Server, other: Server) -> str:
    for what, name in (("kind", "kind"), ("level", "level"), ("model", "model"), ("prompt format", "chat_template")):
        if getattr(one, name) != getattr(other, name):
            return what
    return "" if one.vocabulary.encode(_SAMPLE) == other.vocabulary.encode(_SAMPLE) else "tokenizer"


class _AnyVocabulary:
    """The tokenizer that all have, of the first that answers."""

    def __init__(self, there: Sequence[tuple[Http, Vocabulary]]) -> None:
        self._there = there
        self.size = there[0][1].size

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        first, *others = self._ordered()
        for one in others:
            try:
                return first.encode(text, special=special)
            except RemoteError:
                first = one
        return first.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        first, *others = self._ordered()
        for one in others:
            try:
                return first.decode(ids, special=special)
            except RemoteError:
                first = one
        return first.decode(ids, special=special)

    def _ordered(self) -> list[Vocabulary]:
        return [vocabulary for _, vocabulary in sorted(self._there, key=lambda pair: pair[0].failing)]

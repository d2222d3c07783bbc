"""Two hundred clients that go at random moments: behind them the engine has nothing to do, and holds nothing."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

from exlchat.llm.port import Engine
from tests.patience import PATIENCE
from tests.server.served import CHAT, Served, until

CLIENTS = 200
AT_ONCE = 25


def vanish(served: Served, number: int, chance: random.Random) -> None:
    """Sends a request, whole or in part, reads a while or not, and is gone, with a farewell or without."""
    words = "all work and no play " * chance.choice((1, 20, 200))
    body = {
        "messages": [{"role": "user", "content": f"{number} {words}"}],
        "stream": chance.random() < 0.7,
        "n": chance.choice((1, 1, 1, 3)),
        "max_tokens": 2_000,
    }
    connection = served.open(CHAT, body)
    connection.settimeout(0.5)
    end = time.monotonic() + chance.choice((0.0, 0.001, 0.01, 0.1, 0.3)) * chance.random()
    try:
        while time.monotonic() < end and connection.recv(1_000):
            pass
    except TimeoutError:
        pass
    if chance.random() < 0.5:
        # A reset in the place of an orderly end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_two_hundred_clients_vanish(endless: Served, endless_engine: Engine) -> None:
    chance = random.Random(7)
    todo = [(number, random.Random(chance.random())) for number in range(CLIENTS)]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                number, own = todo.pop()
            vanish(endless, number, own)

    workers = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(4 * PATIENCE)
        assert not one.is_alive()
    until(lambda: endless.desk.running == 0)
    # Who asks now is answered at once, and its page is the only one in use.
    reply = endless.ask(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
    assert reply.status == 200
    until(lambda: endless_engine.cache_report().running == 1)  # type: ignore[attr-defined]
    assert not [one.trouble for one in endless.records if one.trouble]
    assert any(one.left for one in endless.records)

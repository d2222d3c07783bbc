"""Whoever has no torch chats with a server's model: no part of such a start imports it, nor what that starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.pseudo_terminal import Terminal
from tests.remote.stub import DONE, delta, listed, serving, streamed

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("front", [(), ("--line",), ("--line", "--plain")], ids=["app", "line", "plain"])
def test_a_chat_with_a_server_never_imports_torch(tmp_path: Path, front: tuple[str, ...]) -> None:
    imported = tmp_path / "imported"
    fake = tmp_path / "first" / "torch"
    fake.mkdir(parents=True)
    # It stands before the real one in each process, and is seen even where an error of importing is swallowed.
    (fake / "__init__.py").write_text(f"open({str(imported)!r}, 'a').close()\nraise ImportError('no torch')\n")
    environment = {
        "EXLCHAT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(fake.parent), str(REPOSITORY)]),
        "TERM": "xterm-256color",
    }
    routes = {
        "GET /v1/models": listed("far-away", max_model_len=4096),
        "POST /v1/chat/completions": streamed(delta("Good morning"), delta(reason="stop"), DONE),
    }
    with serving(routes) as stub:
        command = [sys.executable, "-m", "exlchat", "--remote", stub.url, *front]
        with Terminal(command, environment) as terminal:
            terminal.wait_for("far-away")
            terminal.type("Hello")
            terminal.wait_for("Hello")
            terminal.type("\r")
            terminal.wait_for("Good morning")
            terminal.type("/quit\r")
            terminal.wait_for_end()
            assert terminal.code == 0
        body, *_ = stub.bodies("/v1/chat/completions")
        assert body["messages"][-1] == {"role": "user", "content": "Hello"}
        # Our usual one, which such a server does not know, is not asked for.
        assert "min_p" not in body
    assert not imported.exists()

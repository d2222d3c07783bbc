"""Real clients from PyPI against the bundled model; docs/clients.md says what each row here has shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from exlchat.llm.events import Event, Finished, GenerationStats, TextDelta
from exlchat.llm.port import Engine, Failed, Handle, Running
from exlchat.llm.request import GenerationRequest
from tests.server.clients import CLIENTS, FEATURES, feature, table
from tests.server.served import Served, serving

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


class CallsOnce:
    """The guide, which calls a function where it is offered one and has not got its result: so small a model would not
    think of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: GenerationRequest, sink: Callable[[Event | Failed], None]) -> Handle:
        prompt = self._engine.decode(request.prompt_ids, special=True)
        if "You can call these functions" not in prompt or "<tool_response>" in prompt or not request.constraint_from:
            return self._engine.submit(request, sink)
        ids = tuple(self._engine.encode(CALL))
        stats = GenerationStats(len(request.prompt_ids), 0, len(ids), 0.1, 0.1, 0.1, 1)

        def tell() -> None:
            sink(TextDelta(CALL, ids))
            sink(Finished("stop_token", stats, CALL, ids))

        threading.Thread(target=tell, daemon=True).start()
        return Running(iter(()), lambda: None)


@pytest.fixture(scope="module")
def served(guide_engine: Engine) -> Iterator[Served]:
    with serving(CallsOnce(guide_engine)) as found:  # type: ignore[arg-type]
        yield found


def _cells() -> Sequence[tuple[str, str]]:
    return [(client, name) for client in CLIENTS for name in FEATURES if feature(client, name) is not None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("client", "name"), _cells())
def test_a_client_can(served: Served, client: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    # Nothing but this machine is asked, and no price list is fetched.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    found = feature(client, name)
    assert found is not None
    found(served, tmp_path)


def test_the_table_of_the_docs_is_what_these_tests_show() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")

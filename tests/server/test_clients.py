"""Real clients from PyPI against the bundled model; docs/clients/README.md has the table that `make clients` makes of
this run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from exlchat.llm.events import Event, Finished, GenerationStats, TextDelta
from exlchat.llm.port import Engine, Failed, Handle, Running
from exlchat.llm.request import GenerationRequest
from tests.server.client_table import ClientTable, UntriedError, read_table
from tests.server.clients import FEATURES, LiteLlm, feature, wanted
from tests.server.served import Served, serving

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "README.md"
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


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> Iterator[ClientTable]:
    """What was seen; at the end of the run it goes into the page that `--client-table` names."""
    table = ClientTable(FEATURES, wanted())
    yield table
    page = request.config.getoption("--client-table")
    if page is not None:
        table.write(Path(page))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("cell", [(client, name) for client, names in wanted().items() for name in names], ids="-".join)
def test_a_client_can(
    served: Served, seen: ClientTable, cell: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    # Nothing but this machine is asked, and no price list is fetched.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    found = feature(*cell)
    assert found is not None
    seen.begins(*cell)
    found(served, tmp_path)
    seen.passed(*cell)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")
def test_litellm_asks_by_its_other_names(guide: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's has a client of its own, and that of texts is asked for probabilities of the prompt."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    assert (
        "EXL2" in LiteLlm.ask(guide, model="hosted_vllm/guide", api_key=None, max_tokens=9).choices[0].message.content
    )
    pieces = LiteLlm.ask(guide, model="hosted_vllm/guide", max_tokens=9, stream=True)
    assert "EXL2" in "".join(one.choices[0].delta.content or "" for one in pieces)
    told = {"echo": True, "logprobs": 1, "max_tokens": 2, "api_base": guide.url, "api_key": "any"}
    text = litellm.text_completion(model="text-completion-openai/guide", prompt="Once upon", **told)
    assert text.choices[0].text.startswith("Once upon")
    assert text.choices[0].logprobs.token_logprobs[0] is None


def test_the_table_of_the_docs_is_what_was_seen(seen: ClientTable, request: pytest.FixtureRequest) -> None:
    """Behind the others: versions, clients, and every cell that was tried."""
    if request.config.getoption("--client-table") is None:
        assert seen.differences(PAGE) == []


# The table itself


def test_a_table_says_what_has_passed_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- clients -->\nold\n<!-- end of clients -->\nbehind\n", encoding="utf-8")
    table = ClientTable(("chat", "tools"), {"openai": ["chat", "tools"], "llm": ["chat"]})
    table.begins("openai", "chat")
    table.passed("openai", "chat")
    table.begins("openai", "tools")
    with pytest.raises(UntriedError, match="llm chat"):
        table.write(page)
    table.begins("llm", "chat")
    table.passed("llm", "chat")
    table.write(page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- clients -->\n| client | version | chat | tools |\n| --- |")
    assert text.endswith("<!-- end of clients -->\nbehind\n")
    rows = {row[0]: row[2:] for row in read_table(page)}
    assert rows == {"client": ["chat", "tools"], "openai": ["yes", "no"], "llm": ["yes", "-"]}
    assert table.differences(page) == []
    page.write_text(text.replace("| no |", "| yes |"), encoding="utf-8")
    assert table.differences(page) == ["openai, tools: README.md says yes, and the run no"]
    page.write_text(text.replace(f"| {openai.__version__} |", "| 1.0 |"), encoding="utf-8")
    assert table.differences(page) == [
        f"openai, version: README.md says 1.0, and the run {openai.__version__}",
    ]
    page.write_text(text.replace("| llm |", "| other |"), encoding="utf-8")
    assert len(table.differences(page)) == 1

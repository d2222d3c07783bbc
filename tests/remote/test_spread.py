"""Several servers of one name: a conversation stays where it was read, work goes where there is time for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.request import GenerationRequest
from exlchat.remote.address import Address, Remote, RemoteError
from exlchat.remote.engine import RemoteEngine, connect
from tests.patience import PATIENCE
from tests.remote.peer import free_port
from tests.remote.stub import DONE, Route, Stub, delta, listed, serving, streamed, told

CHAT = "/v1/chat/completions"
ROUTES = {"GET /v1/models": listed("m"), f"POST {CHAT}": streamed(delta("Hi"), delta("", "stop"), DONE)}


def engine(*urls: str) -> RemoteEngine:
    first, *others = [Address.parse(url) for url in urls]
    return connect(Remote("both", first, others=tuple(others)))


def line(text: str) -> str:
    return f'{{"role": "user", "content": "{text}"}}\n'


def said(there: RemoteEngine, text: str) -> str:
    *_, last = there.generate(GenerationRequest(there.encode(text), max_new_tokens=20))
    assert isinstance(last, Finished)
    return last.text


def counts(*stubs: Stub) -> list[int]:
    return [len(stub.bodies(CHAT)) for stub in stubs]


@pytest.fixture
def two() -> Iterator[tuple[Stub, Stub]]:
    with serving(ROUTES) as one, serving(ROUTES) as other:
        yield one, other


def test_a_conversation_stays_where_its_beginning_was_read(two: tuple[Stub, Stub]) -> None:
    there = engine(*(stub.url for stub in two))
    texts = {"a": line("What is the weather on Mars like?"), "b": line("Tell me of llamas, please, at length.")}
    went: dict[str, list[int]] = {"a": [], "b": []}
    running = [there.generate(GenerationRequest(there.encode(text))) for text in texts.values()]
    with ExitStack() as stack:
        # Both at once, so that they are at different servers.
        for one in running:
            stack.enter_context(one)
            next(one)
            next(one)
    first = counts(*two)
    assert first == [1, 1]
    for turn in range(4):
        for name in "ba" if turn % 2 else "ab":
            before = counts(*two)
            texts[name] += line(f"And number {turn}?")
            assert said(there, texts[name]) == "Hi"
            went[name].append([after - old for after, old in zip(counts(*two), before, strict=True)].index(1))
    assert {len(set(went[name])) for name in "ab"} == {1}
    assert went["a"] != went["b"]


def test_what_is_new_goes_where_least_waits_by_the_servers_own_count() -> None:
    def metrics(waiting: int) -> Route:
        text = (
            f'# HELP\nvllm:num_requests_running{{model_name="m"}} 1.0\nvllm:num_requests_waiting{{x="y"}} {waiting}.0\n'
        )
        return lambda _: (200, {"Content-Type": "text/plain"}, iter([text.encode()]))

    with (
        serving({**ROUTES, "GET /metrics": metrics(7)}) as busy,
        serving({**ROUTES, "GET /metrics": metrics(0)}) as idle,
    ):
        said(engine(busy.url, idle.url), line("Hello"))
        assert counts(busy, idle) == [0, 1]


def test_who_is_not_there_is_left_out_and_told(two: tuple[Stub, Stub]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    there = engine(nobody, two[0].url)
    assert any(nobody in notice and "the others answer" in notice for notice in there.info.notices)
    assert said(there, line("Hello")) == "Hi"


def test_one_that_goes_away_is_replaced_before_the_first_word() -> None:
    with serving(ROUTES) as stays:
        with serving(ROUTES) as goes:
            there = engine(goes.url, stays.url)
            said(there, line("Hello"))
        for _ in range(3):
            assert said(there, line("Hello")) == "Hi"
        assert sum(counts(stays, goes)) == 4


def test_a_busy_one_sends_to_the_next_without_waiting() -> None:
    refusal = told({"error": "full"}, status=503, **{"Retry-After": "25"})
    done = threading.Event()
    with serving({**ROUTES, f"POST {CHAT}": refusal}) as full, serving(ROUTES) as free:

        def ask() -> None:
            said(engine(full.url, free.url), line("Hello"))
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(min(PATIENCE, 20.0))
        assert counts(free) == [1]


def test_two_models_are_no_one_server() -> None:
    with (
        serving(ROUTES) as one,
        serving({**ROUTES, "GET /v1/models": listed("other")}) as other,
        pytest.raises(RemoteError, match=f"{other.url} has another model than {one.url}"),
    ):
        engine(one.url, other.url)


def test_a_wrong_key_at_one_of_them_is_told_and_not_passed_over(two: tuple[Stub, Stub]) -> None:
    with (
        serving({"GET /v1/models": told({"error": "key"}, status=401)}) as locked,
        pytest.raises(RemoteError, match=f"{locked.url}: refuses without the right key"),
    ):
        engine(two[0].url, locked.url)


def test_text_that_has_come_is_not_asked_for_again_elsewhere(two: tuple[Stub, Stub]) -> None:
    for stub in two:
        stub.routes[f"POST {CHAT}"] = streamed(delta("Hel"))
    there = engine(*(stub.url for stub in two))
    running = there.generate(GenerationRequest(there.encode(line("Hello"))))
    texts: list[str] = []
    with pytest.raises(RemoteError, match="breaks off"):
        texts.extend(event.text for event in running if isinstance(event, TextDelta))
    assert texts == ["Hel"]
    assert sum(counts(*two)) == 1

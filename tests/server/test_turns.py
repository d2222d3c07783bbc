"""Who goes first, and who is told to come again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Engine, Handle
from exlchat.llm.request import GenerationRequest, Rank, ScoreRequest
from exlchat.server import desk
from exlchat.server.guard import Rules
from exlchat.server.keys import Keys
from tests.server.served import CHAT, Served, read_until, serving, until

ENDLESS: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on and on."}]}


@contextlib.contextmanager
def all_rows_taken(served: Served, priority: int) -> Iterator[None]:
    """Inside, as many endless answers run as run side by side."""
    running = [
        served.open(CHAT, {**ENDLESS, "stream": True, "priority": priority, "seed": number})
        for number in range(MOST_ANSWERS)
    ]
    for connection in running:
        read_until(connection, b'"content": "')
    yield
    assert served.desk.running >= MOST_ANSWERS
    for connection in running:
        connection.close()
    until(lambda: served.desk.running == 0)


@pytest.mark.parametrize("there", [1, 2, 10**9])
def test_who_does_not_step_back_goes_before_those_who_do(endless: Served, there: int) -> None:
    with all_rows_taken(endless, there):
        reply = endless.ask(CHAT, {**ENDLESS, "max_tokens": 5})
        assert reply.json["usage"]["completion_tokens"] == 5
        assert reply.headers.get("x-exlchat-ignored") is None


@pytest.mark.parametrize(("there", "comes"), [(0, 1), (1, 2), (1, 1)])
def test_who_steps_back_waits_for_the_others(endless: Served, there: int, comes: int) -> None:
    with all_rows_taken(endless, there):
        waiting = endless.open(CHAT, {**ENDLESS, "max_tokens": 5, "priority": comes})
        until(lambda: endless.desk.waiting == 1)
        # What asks behind it, and goes before all of them, is answered meanwhile.
        if there:
            assert endless.ask(CHAT, {**ENDLESS, "max_tokens": 5}).status == 200
        assert endless.desk.waiting == 1
    read_until(waiting, b'"completion_tokens"')


def test_a_key_may_have_a_rank_and_a_bound_of_its_own(
    endless_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path / "serve-keys.json")
    mine, theirs = keys.add("mine"), keys.add("theirs", rank=Rank.BULK, answers=3)
    assert [str(one) for one in keys.all()] == ["mine", "theirs, rank bulk, at most 3 answers at a time"]
    asked: list[Rank] = []
    submit = endless_engine.submit

    def noted(request: GenerationRequest | ScoreRequest, sink: Callable[..., None]) -> Handle:
        asked.append(request.rank)
        return submit(request, sink)

    monkeypatch.setattr(endless_engine, "submit", noted)
    with serving(endless_engine, rules=Rules(keys=keys, always_keys=True)) as served:
        running = served.open(CHAT, {**ENDLESS, "stream": True, "n": 2}, {"x-api-key": theirs})
        read_until(running, b'"content": "')
        full = served.ask(CHAT, {**ENDLESS, "max_tokens": 2, "n": 2}, {"x-api-key": theirs})
        assert (full.status, full.headers["retry-after"]) == (429, "5")
        assert full.json["error"]["message"] == "the key theirs has at most 3 answers at a time; ask again later"
        assert served.ask(CHAT, {**ENDLESS, "max_tokens": 2}, {"x-api-key": theirs}).status == 200
        assert served.ask(CHAT, {**ENDLESS, "max_tokens": 2, "n": 4}, {"x-api-key": mine}).status == 200
        assert asked == [Rank.BULK] * 3 + [Rank.API] * 4
        # Who is last already stays it.
        last = {**ENDLESS, "max_tokens": 2, "priority": 2}
        assert served.ask(CHAT, last, {"x-api-key": theirs}).status == 200
        assert asked[-1] is Rank.IDLE
        running.close()
        until(lambda: served.desk.running == 0)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("priority", [-1, 1.5, "high", True, [1]])
def test_nobody_goes_before_the_screen(endless: Served, path: str, priority: object) -> None:
    reply = endless.ask(path, {**ENDLESS, "prompt": "Once", "max_tokens": 1, "priority": priority})
    assert (reply.status, reply.json["error"]["param"]) == (400, "priority")
    assert "0 or more" in reply.json["error"]["message"]


# Who is told to come again


def full(served: Served, wanted: int) -> bool:
    return served.desk.answers == wanted


def test_each_answer_counts_and_not_each_client(endless: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MOST_WAITING", 24)
    three = [endless.open(CHAT, {**ENDLESS, "n": 8, "seed": number, "priority": 1}) for number in range(3)]
    until(lambda: full(endless, 24))
    assert endless.desk.running == 3
    assert b"\nexlchat_answers_open 24\n" in endless.ask("/metrics").body
    refused = endless.ask(CHAT, {**ENDLESS, "max_tokens": 1})
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert "24 answers" in refused.json["error"]["message"]
    three.pop().close()
    until(lambda: full(endless, 16))
    # There is room for one, and not for nine.
    assert endless.ask(CHAT, {**ENDLESS, "max_tokens": 1}).status == 200
    prompts = {"prompt": ["Once", "Twice", "Thrice"], "n": 3, "max_tokens": 1}
    assert endless.ask("/v1/completions", prompts).status == 429
    assert endless.ask("/v1/completions", {**prompts, "n": 2}).status == 200
    for connection in three:
        connection.close()
    until(lambda: full(endless, 0))


def test_an_answer_that_has_ended_makes_room_for_another(endless: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MOST_WAITING", 3)
    # The second prompt leaves no room for more than a few tokens; the first goes on.
    long = [9] * (8192 - 4)
    two = endless.open("/v1/completions", {"prompt": [[9, 10, 11], long], "max_tokens": 8000})
    until(lambda: full(endless, 2))
    assert endless.ask("/v1/completions", {"prompt": "Once", "n": 2, "max_tokens": 1}).status == 429
    until(lambda: full(endless, 1))
    assert endless.ask("/v1/completions", {"prompt": "Once", "n": 2, "max_tokens": 1}).status == 200
    two.close()
    until(lambda: full(endless, 0))


def test_who_asks_for_more_than_ever_fits_need_not_come_again(endless: Served) -> None:
    reply = endless.ask("/v1/completions", {"prompt": ["Once"] * 33, "n": 8, "max_tokens": 1})
    assert reply.status == 400
    assert "264 answers, and 256 is most" in reply.json["error"]["message"]
    assert "retry-after" not in reply.headers


def test_a_client_of_the_field_is_told_so(endless: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MOST_WAITING", 8)
    taken = endless.open(CHAT, {**ENDLESS, "n": 8})
    until(lambda: full(endless, 8))
    with (
        openai.OpenAI(base_url=endless.url, api_key="any", max_retries=0) as client,
        pytest.raises(openai.RateLimitError, match="ask again later"),
    ):
        client.chat.completions.create(model="endless", messages=ENDLESS["messages"], max_tokens=1)
    taken.close()
    until(lambda: full(endless, 0))

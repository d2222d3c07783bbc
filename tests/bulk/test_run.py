"""A run answers every line as it would be answered alone, names those that cannot be, and reads nothing twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exlchat.api.chat_body import read_chat_body
from exlchat.api.chat_model import ChatModel
from exlchat.api.fields import Fields
from exlchat.api.plan import plan_chat
from exlchat.bulk.running import EngineFailedError
from exlchat.llm.events import Event, Finished, Scored, TextDelta
from exlchat.llm.info import ModelError
from exlchat.llm.port import CanScore, Engine, Failed, Handle
from exlchat.llm.request import GenerationRequest, Rank, ScoreRequest
from tests.bulk.conftest import Runner
from tests.noted_ranks import NotedRanks

QUESTIONS = [
    {"id": f"q{number}", "prompt": f"What does /{word} do?", "max_tokens": 12}
    for number, word in enumerate(
        ("retry", "open", "cache", "persona", "tag", "set", "compare", "theme", "export", "model", "undo", "search")
    )
]


def content(line: Any) -> str:
    said: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return said


def test_every_answer_is_what_it_is_alone(runner: Runner) -> None:
    """Drawn, of unlike requests, all at once and one at a time."""
    requests = [
        {**one, "temperature": 0.2 * number, "repetition_penalty": 1.0 + 0.1 * (number % 3)}
        for number, one in enumerate(QUESTIONS)
    ]
    together = runner.run(*requests, name="together")
    alone = [runner.run(one, name=f"alone-{one['id']}", rows=1)[0] for one in requests]
    assert [content(one) for one in together] == [content(one) for one in alone]
    assert len({content(one) for one in together}) > 6
    assert [one["custom_id"] for one in together] == [one["id"] for one in requests]
    assert {one["response"]["status_code"] for one in together} == {200}


def test_an_answer_is_what_the_engine_says_of_that_prompt(runner: Runner) -> None:
    line = runner.run(QUESTIONS[0])[0]
    model = runner.speaker.model
    body = read_chat_body(Fields({"messages": [{"role": "user", "content": QUESTIONS[0]["prompt"]}], "max_tokens": 12}))
    (request,) = plan_chat(model, body, runner.speaker.voice).requests
    *_, last = model.engine.generate(request)
    assert isinstance(last, Finished)
    body = line["response"]["body"]
    assert content(line) == last.text
    assert body["usage"]["prompt_tokens"] == len(request.prompt_ids)
    assert body["usage"]["completion_tokens"] == last.stats.new_tokens


def test_seeds_depend_on_the_request_alone(runner: Runner) -> None:
    hot = [{"id": f"n{number}", "prompt": "Say something", "max_tokens": 8, "temperature": 1.5} for number in range(4)]
    first = [content(one) for one in runner.run(*hot, name="first")]
    assert first == [content(one) for one in runner.run(*hot, name="second", rows=2)]
    assert first[::-1] == [content(one) for one in runner.run(*hot[::-1], name="third")]
    assert len(set(first)) > 1
    # Its own seed, and that of the run, are what they are in a request to the server.
    fixed = [{**one, "seed": 5} for one in hot]
    assert len({content(one) for one in runner.run(*fixed, name="fixed")}) == 1


def test_one_long_beginning_is_read_once(runner: Runner) -> None:
    """Two hundred questions behind one system prompt, and its tokens are computed for the first of them only."""
    system = "You know everything of terminals. " * 40
    requests = [
        {
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Number {number}"}],
            "max_tokens": 1,
        }
        for number in range(200)
    ]
    lines = runner.run(*requests)
    usage = [one["response"]["body"]["usage"] for one in lines]
    computed = sum(one["prompt_tokens"] - one["prompt_tokens_details"]["cached_tokens"] for one in usage)
    beginning = len(runner.speaker.model.engine.encode(system))
    assert beginning > 250
    assert computed < beginning + 200 * 40
    assert runner.figures is not None
    assert runner.figures.prompt_tokens - runner.figures.cached_tokens == computed


def test_what_cannot_be_answered_is_named_and_the_others_go_on(runner: Runner) -> None:
    requests = [
        QUESTIONS[0],
        {"id": "long", "prompt": "word " * 5000},
        {"id": "range", "prompt": "hi", "temperature": -1},
        {"id": "schema", "prompt": "hi", "guided_json": {"type": 3}},
        {"id": "image", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"id": "ids", "url": "/v1/completions", "body": {"prompt": [10**9], "max_tokens": 1}},
        QUESTIONS[1],
    ]
    lines = {one["custom_id"]: one["response"] for one in runner.run(*requests)}
    assert {name: one["status_code"] for name, one in lines.items()} == {
        "q0": 200,
        "long": 400,
        "range": 400,
        "schema": 400,
        "image": 400,
        "ids": 400,
        "q1": 200,
    }
    assert lines["long"]["body"]["error"]["code"] == "context_length_exceeded"
    assert "temperature" in lines["range"]["body"]["error"]["message"]
    assert runner.figures is not None
    assert runner.figures.failed == {400: 5}
    # They are asked again, and answered now that they can be.
    mended = [{"id": one["id"], "prompt": "hi", "max_tokens": 1} for one in requests[1:6]]
    again = runner.run(QUESTIONS[0], *mended, QUESTIONS[1])
    assert {one["response"]["status_code"] for one in again} == {200}
    assert (runner.figures.there, runner.figures.answered) == (2, 5)


def test_several_answers_completions_and_forms_of_one_run(runner: Runner) -> None:
    requests = [
        {"id": "n", "prompt": "Name a colour", "n": 3, "max_tokens": 4, "temperature": 1.0},
        {"id": "raw", "url": "/v1/completions", "body": {"prompt": "The keys are", "max_tokens": 4}},
        {"id": "form", "prompt": "Is it?", "regex": "(yes|no)"},
        {"id": "choice", "prompt": "Is it?", "choice": ["left", "right"], "stream": True},
    ]
    lines = {one["custom_id"]: one["response"]["body"] for one in runner.run(*requests)}
    assert [one["index"] for one in lines["n"]["choices"]] == [0, 1, 2]
    assert lines["raw"]["object"] == "text_completion"
    assert lines["form"]["choices"][0]["message"]["content"] in ("yes", "no")
    assert lines["choice"]["choices"][0]["message"]["content"] in ("left", "right")


def test_a_text_is_scored_as_the_engine_scores_it(runner: Runner) -> None:
    engine = runner.speaker.model.engine
    assert isinstance(engine, CanScore)
    text = "EXL2 is a format of quantized weights."
    line = runner.run({"id": "a", "text": text}, {"id": "b", "text": "x"}, score=True)
    ids = engine.encode(text)
    front = engine.encode(engine.info.bos_token) if engine.info.bos_token else []
    *_, scored = engine.score(ScoreRequest([*front, *ids], 1, 1))
    assert isinstance(scored, Scored)
    wanted = [one.taken.log_probability for one in scored.places if one.taken is not None]
    body = line[0]["response"]["body"]
    assert body["token_logprobs"] == pytest.approx(wanted, abs=1e-5)
    assert body["logprob"] == pytest.approx(sum(wanted), abs=1e-4)
    if not front:
        assert line[1]["response"]["status_code"] == 400


class _Broken:
    """An engine that fails from some request on, as a card does that has fallen off its bus."""

    def __init__(self, engine: Engine, good: int) -> None:
        self._engine = engine
        self._good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: GenerationRequest, sink: Callable[[Event | Scored | Failed], None]) -> Handle:
        self._good -= 1
        if self._good >= 0:
            return self._engine.submit(request, sink)
        failed = Failed(ModelError("the GPU failed in a decode step; start again"))
        threading.Thread(target=sink, args=(failed,)).start()

        class Nothing:
            def cancel(self) -> None: ...

        return Nothing()


def test_an_engine_that_answers_nothing_any_more_ends_the_run(runner: Runner) -> None:
    model = runner.speaker.model
    broken = replace(runner.speaker, model=type(model)(_Broken(model.engine, 3)))  # type: ignore[arg-type]
    requests = [{"id": f"q{number}", "prompt": f"Hello {number}", "max_tokens": 2} for number in range(100)]
    with pytest.raises(EngineFailedError, match="in a row have failed; the last of them: the GPU failed"):
        Runner(broken, runner.folder).run(*requests)
    there = [json.loads(line) for line in (runner.folder / "out.jsonl").read_bytes().splitlines()]
    assert len(there) < 60
    # The same command goes on, and every line is answered once.
    whole = runner.run(*requests)
    assert [one["custom_id"] for one in whole] == [one["id"] for one in requests]
    assert {one["response"]["status_code"] for one in whole} == {200}


def test_a_line_goes_before_nobody_who_asks_by_himself(runner: Runner) -> None:
    """Whatever it says of itself, the engine is asked with the rank of a run, or behind it."""
    asked = NotedRanks(runner.speaker.model.engine)
    noting = replace(runner, speaker=replace(runner.speaker, model=ChatModel(asked)))  # type: ignore[arg-type]
    told = {"echo": True, "logprobs": 1, "max_tokens": 1}
    noting.run(
        {"id": "plain", "prompt": "hi", "max_tokens": 1},
        {"id": "first", "prompt": "ho", "max_tokens": 1, "priority": 0},
        {"id": "last", "prompt": "hu", "max_tokens": 1, "priority": 2},
        {"id": "scored", "url": "/v1/completions", "body": {"prompt": "The keys", **told, "priority": 5}},
    )
    assert sorted(asked.ranks) == [Rank.BULK, Rank.BULK, Rank.IDLE, Rank.IDLE, Rank.IDLE]
    refused = noting.run({"id": "before", "prompt": "hi", "priority": -1}, name="refused")
    assert refused[0]["response"]["status_code"] == 400


class CountedRows(NotedRanks):
    """It knows how much it is asked at a time, too."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._lock = threading.Lock()
        self.now = self.most = 0

    def submit(self, request: GenerationRequest | ScoreRequest, sink: Callable[[Any], None]) -> Handle:
        def told(event: Event | Scored | Failed) -> None:
            if isinstance(event, Finished | Failed):
                with self._lock:
                    self.now -= 1
            sink(event)

        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return super().submit(request, told)


@pytest.mark.parametrize("rows", [1, 3])
def test_as_many_answers_at_a_time_as_were_wanted(runner: Runner, rows: int) -> None:
    """One more would be drawn from passes of more rows, whose last bits are others on a card."""
    counted = CountedRows(runner.speaker.model.engine)
    counting = replace(runner, speaker=replace(runner.speaker, model=ChatModel(counted)))  # type: ignore[arg-type]
    counting.run(*({**one, "max_tokens": 4} for one in QUESTIONS[:8]), rows=rows)
    assert counted.most == rows
    counted.most = 0
    counting.run(*({**one, "max_tokens": 4, "n": 2} for one in QUESTIONS[:3]), rows=rows, name="twos")
    assert counted.most == 2


def test_a_run_wakes_for_answers_and_not_for_tokens(runner: Runner) -> None:
    """Whoever is woken for each token of many answers keeps the engine waiting."""
    requests = [{**one, "max_tokens": 120, "min_tokens": 120} for one in QUESTIONS[:4]]
    lines = runner.run(*requests, rows=4)
    assert [one["response"]["body"]["usage"]["completion_tokens"] for one in lines] == [120] * 4
    assert runner.figures is not None
    assert runner.figures.new_tokens == 480
    # Once or twice an answer, and twice a second.
    assert runner.looks < 16 + 3 * runner.figures.seconds


class FailsAtFirst(NotedRanks):
    """The first of two answers says something and the second fails; what is asked after them is answered."""

    def submit(self, request: GenerationRequest | ScoreRequest, sink: Callable[[Any], None]) -> Handle:
        handle = super().submit(request, sink if len(self.ranks) >= 2 else lambda _event: None)
        if len(self.ranks) > 2:
            return handle
        handle.cancel()
        sink(TextDelta("before") if len(self.ranks) == 1 else Failed(RuntimeError("the card is gone")))
        return handle


def test_what_a_failed_request_has_said_is_not_in_its_second_answer(runner: Runner) -> None:
    failing = FailsAtFirst(runner.speaker.model.engine)
    trying = replace(runner, speaker=replace(runner.speaker, model=ChatModel(failing)))  # type: ignore[arg-type]
    two = {**QUESTIONS[0], "n": 2}
    (again,) = trying.run(two, name="again")
    (at_once,) = runner.run(two, name="at once")
    assert len(failing.ranks) == 4
    assert [one["message"] for one in again["response"]["body"]["choices"]] == [
        one["message"] for one in at_once["response"]["body"]["choices"]
    ]

"""A model that can no more than answer: what it lacks is done without, or said in a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from exlchat.app.runtime.jobs import Question
from exlchat.app.runtime.requests import EngineFigures, Questions
from exlchat.chat.answer_chances import answer_chances
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.prompt.cost import prompt_cost
from exlchat.chat.prompt.inspection import inspected
from exlchat.chat.several_answers import several_answers
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event
from exlchat.llm.info import ModelInfo
from exlchat.llm.port import Cancellation, Capabilities, Failed, Handle, Running
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import GREEDY
from tests.chat.scripted_engine import ScriptedEngine
from tests.chat.templates import CHATML


class BareEngine:
    """What `Engine` asks for, and nothing else."""

    capabilities = Capabilities(constraint=False, guidance_ids=False, draft_model=False)

    def __init__(self) -> None:
        self.whole = ScriptedEngine(chat_template=CHATML)

    @property
    def info(self) -> ModelInfo:
        return self.whole.info

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self.whole.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self.whole.decode(ids, special=special)

    def check(self, request: GenerationRequest) -> None:
        self.capabilities.check(request)

    def submit(self, request: GenerationRequest, sink: Callable[[Event | Failed], None]) -> Handle:
        raise NotImplementedError

    def generate(self, request: GenerationRequest) -> Running[Event]:
        self.check(request)
        return self.whole.generate(request)

    def close(self) -> None:
        """Nothing is written."""


class Jobs:
    """Asks at once."""

    def __init__(self, engine: BareEngine) -> None:
        self.engine = engine
        self.errors: list[str] = []

    def ask(self, question: Question) -> None:
        try:
            question.tell(question.ask(self.engine))
        except RequestError as error:
            self.errors.append(str(error))


@pytest.fixture
def engine() -> BareEngine:
    return BareEngine()


@pytest.fixture
def store() -> ConversationStore:
    return ConversationStore(None)


@pytest.fixture
def asked(store: ConversationStore) -> str:
    ident = store.create_conversation().id
    store.add_message(ident, "user", "Hello?")
    return ident


def test_it_answers(engine: BareEngine, store: ConversationStore, asked: str) -> None:
    engine.whole.will_say("Well.")
    *_, closed = answer(store, engine, asked, TurnOptions(GREEDY))
    assert closed.message.text == "Well."  # type: ignore[union-attr]


def test_of_its_prompts_nothing_is_cached(engine: BareEngine, store: ConversationStore, asked: str) -> None:
    branch = store.load(asked).branch
    cost = prompt_cost(engine, branch)
    assert (cost.cached_tokens, cost.new_tokens) == (0, cost.prompt_tokens)
    assert inspected(engine, branch, template=None, policy="stop").cached == 0


def test_several_answers_and_probabilities_are_refused_before_anything_is_kept(
    engine: BareEngine, store: ConversationStore, asked: str
) -> None:
    with pytest.raises(TurnError, match="one answer at a time"):
        list(several_answers(store, engine, asked, TurnOptions(GREEDY), seeds=[1, 2]))
    assert [one.role for one in store.load(asked).branch] == ["user"]
    engine.whole.will_say("Well.")
    *_, closed = answer(store, engine, asked, TurnOptions(GREEDY))
    with pytest.raises(TurnError, match="does not tell how likely"):
        list(answer_chances(store, engine, closed.message.id, template=None, policy="stop"))  # type: ignore[union-attr]


def test_what_is_asked_about_its_cache_is_said_in_a_line(engine: BareEngine, store: ConversationStore) -> None:
    jobs = Jobs(engine)
    questions = Questions(store, jobs)  # type: ignore[arg-type]
    questions.cache(lambda _: pytest.fail("it has none"))
    assert jobs.errors == ["this model says nothing of a cache"]
    questions.ask_figures()
    assert isinstance(questions.figures, EngineFigures)
    assert (questions.figures.cache, questions.figures.memory) == (None, None)


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (GenerationRequest((), constraint=Constraint("choice", "a")), "constraint"),
        (GenerationRequest((), guidance_ids=(1,)), "guidance"),
        (GenerationRequest((), draft="model"), "there is no draft model"),
    ],
)
def test_what_a_request_may_not_ask_for_is_refused_in_a_line(
    engine: BareEngine, request_: GenerationRequest, what: str
) -> None:
    with pytest.raises(RequestError, match=what) as refused:
        engine.check(request_)
    assert "\n" not in str(refused.value)
    engine.check(GenerationRequest((), banned=("x",), heal=True, alternatives=3, draft="ngram"))


def test_a_constraint_is_refused_and_no_answer_is_left(
    engine: BareEngine, store: ConversationStore, asked: str
) -> None:
    options = TurnOptions(GREEDY, speech=AnswerOptions(constraint=Constraint("choice", "a")))
    with pytest.raises(RequestError, match="cannot do constraint"):
        list(answer(store, engine, asked, options))
    assert [one.role for one in store.load(asked).branch] == ["user"]


def test_work_is_cancelled_whatever_of_it_runs() -> None:
    cancelled: list[str] = []

    def running(name: str) -> Running[str]:
        return Running(iter([name]), lambda: cancelled.append(name))

    cancellation = Cancellation()
    with cancellation.over(running("first")) as events:
        assert list(events) == ["first"]
    with cancellation.over(running("second")):
        cancellation.cancel()
        assert cancelled == ["second"]
    assert cancellation.asked
    with cancellation.over(running("third")):
        assert cancelled == ["second", "third"]
    cancellation.cancel()
    assert cancelled == ["second", "third"], "what has ended is not cancelled again"

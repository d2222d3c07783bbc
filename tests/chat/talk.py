"""A conversation that outgrows the context."""

from __future__ import annotations

from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerStarted, Summarising, TurnEvent
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import SamplingSettings
from tests.chat.scripted_engine import Reply, ScriptedEngine

LIMIT = 1024
QUESTION = "What of the quick brown fox"
ANSWER = "The fox jumps over the lazy dog. " * 2


def options(policy: ContextPolicy) -> TurnOptions:
    return TurnOptions(SamplingSettings(temperature=0.7), seed=42, context_policy=policy)


class Talk:
    """A conversation with numbered questions; its summaries are numbered too."""

    def __init__(self, store: ConversationStore, engine: ScriptedEngine, *, system: str | None = "Be brief.") -> None:
        self.store, self.engine = store, engine
        self.id = store.create_conversation().id
        self.asked = 0
        self.summaries = 0
        if system:
            store.add_message(self.id, "system", system)

    def ask(self, policy: ContextPolicy) -> list[TurnEvent]:
        self.store.add_message(self.id, "user", f"{QUESTION} {self.asked}?")
        self.asked += 1
        return self.answer(policy)

    def answer(self, policy: ContextPolicy, **how: str) -> list[TurnEvent]:
        """The engine is given a summary to say as soon as it is asked for one."""
        self.engine.replies.clear()
        events: list[TurnEvent] = []
        turn = answer(self.store, self.engine, self.id, options(policy), **how)
        self.engine.will_say(ANSWER)
        for event in turn:
            if isinstance(event, Summarising) and not any(isinstance(one, Summarising) for one in events):
                self.summaries += 1
                self.engine.replies.insert(0, Reply(self.engine.spelled(f"Summary number {self.summaries}.")))
            events.append(event)
        return events

    def until_cut(self, policy: ContextPolicy) -> list[TurnEvent]:
        """Ask until something is left out."""
        for _ in range(60):
            events = self.ask(policy)
            if started(events).context_notice is not None:
                return events
        raise AssertionError("nothing was left out")

    @property
    def prompt(self) -> str:
        """The last prompt of an answer."""
        return self.engine.text_with_special_tokens(list(self.engine.requests[-1].prompt_ids))

    @property
    def record(self) -> AnswerRecord:
        record = self.store.load(self.id).branch[-1].record
        assert record is not None
        return record

    @property
    def said(self) -> list[Message]:
        return [one for one in self.store.load(self.id).branch if one.role != "system"]


def started(events: list[TurnEvent]) -> AnswerStarted:
    return next(event for event in events if isinstance(event, AnswerStarted))

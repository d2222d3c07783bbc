"""What the bundled guide answers in the chat: the fact that a question is about, word for word, or that it knows none.

The model is too small to be trusted with facts, so it is held to their texts as to any other constraint: an answer is
drawn token by token, stops, counts and goes on like all answers. Where the words of the question leave several facts,
the model draws the one that it finds likeliest, or that it does not know: to tell what was meant it is large enough.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.answer_options import PLAIN
from exlchat.chat.speaking import TurnError, speaker_name
from exlchat.llm.constraint import Constraint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from exlchat.app.guide.facts import Fact
    from exlchat.app.guide.lookup import Found, Lookup
    from exlchat.chat.answer_options import AnswerOptions
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.llm.port import Engine

UNKNOWN = "not-known"
"""The fact that is quoted where none is found."""
_REFUSED = "out-general"
_CHOICE = 8
"""How many facts the model chooses from; of a hundred questions 94 have theirs among so many, 97 among all."""
_MOST = 3
"""How many answers a question has, one beside the other; what comes behind them is too far from it."""


class Quoting:
    """Quotes the facts, which are read with the first question. On the engine's thread."""

    def __init__(self) -> None:
        self._lookup: Lookup | None = None

    def answers(self, question: str, given: Collection[str] = ()) -> list[str]:
        """What may be said to a question beside what was `given`: one text where it is sure, none if none is left."""
        texts, sure = self._texts(question)
        left = [text for text in texts if text not in given] if len(given) < _MOST else []
        return left[:1] if sure else left

    def _texts(self, question: str) -> tuple[list[str], bool]:
        """Of the facts that it may be about, the best first, and whether it is about the first."""
        from exlchat.app.guide.facts import load_facts

        facts, found = load_facts(), self._found(question)
        if not found.facts:
            return [quoted(facts[UNKNOWN])], True
        if found.sure:
            return [quoted(fact) for fact in found.facts[:_MOST]], True
        about = [*found.facts[:_CHOICE], facts[UNKNOWN], facts[_REFUSED]]
        return list(dict.fromkeys(map(quoted, about))), False

    def _found(self, question: str) -> Found:
        # Most starts have another model.
        from exlchat.app.guide.facts import load_facts
        from exlchat.app.guide.lookup import Lookup

        if self._lookup is None:
            self._lookup = Lookup(load_facts())
        return self._lookup.find(question)

    def rows(self, question: str) -> list[tuple[str, str]]:
        """Pages and what they say, of the facts that a question may be about; none where nothing is written."""
        facts = self._found(question).facts
        return [(fact.page, fact.answers[0]) for fact in facts[:_MOST] if not fact.out_of_scope]

    def held(
        self,
        store: ConversationStore,
        engine: Engine,
        conversation_id: str,
        speech: AnswerOptions,
        *,
        earlier: str | None,
        goes_on: bool,
    ) -> AnswerOptions:
        """How the next answer has to be: as was asked for, where another model answers, a persona, or in a wished form.

        Args:
            earlier: the id of an answer that was given to the question.
            goes_on: whether the next one begins with its text; else it stands beside it, and says something else.

        Raises:
            TurnError: nothing else can be said.
            StoreError: the conversation cannot be read.
        """
        if Path(engine.info.path) != paths.bundled_model() or _wishes_form(speech):
            return speech
        before = None if earlier is None else store.message(earlier)
        branch = store.load(conversation_id).branch if before is None else store.branch(before.parent_id)
        if speaker_name(branch) is not None:
            return speech
        question = next((one.text for one in reversed(branch) if one.role == "user"), "")
        if before is not None and goes_on:
            # What somebody has changed is none of these, and the model goes on with it.
            texts = [text for text in self._texts(question)[0] if text.startswith(before.text)]
            return replace(speech, constraint=one_of(texts)) if texts else speech
        texts = self.answers(question, () if before is None else {one.text for one in store.alternatives(before.id)})
        if not texts:
            raise TurnError("the guide has nothing else to quote on this; ask in other words, or load a real model")
        return replace(speech, constraint=one_of(texts))


def quoted(fact: Fact) -> str:
    """A fact as it is said, with where it is from."""
    if not fact.page:
        return fact.answers[0]
    return f"{fact.answers[0]}\n\n*Quoted from the guide's facts; more in {fact.page}*"


def _wishes_form(speech: AnswerOptions) -> bool:
    """Whether something is asked for that a text given beforehand need not have."""
    forms = ("constraint", "ban", "begin", "min_tokens", "negative")
    return any(getattr(speech, name) != getattr(PLAIN, name) for name in forms)


def one_of(texts: Iterable[str]) -> Constraint:
    """To be one of these to the letter; a `choice` would have each in one line."""
    return Constraint("grammar", "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))

"""What the bundled guide answers in the chat: the fact that a question is about, word for word, or that it knows none.

The model is too small to be trusted with facts, so it is held to the text as to any other constraint: it is drawn token
by token, stops, counts and goes on like all answers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.answer_options import PLAIN
from exlchat.chat.speaking import TurnError
from exlchat.llm.constraint import Constraint

if TYPE_CHECKING:
    from exlchat.app.guide.facts import Fact
    from exlchat.app.guide.lookup import Lookup
    from exlchat.chat.answer_options import AnswerOptions
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.llm.port import Engine

UNKNOWN = (
    "I do not know that: I only quote what is written about exlchat, and found nothing that fits. F1 lists all keys "
    "and commands, the folder `docs` has the rest. For all other questions load a real model with `/models`."
)
_OTHERS = 3
"""How many facts a question may be about; what is found behind them is too far from it."""


class Quoting:
    """Quotes the facts, which are read with the first question. On the engine's thread."""

    def __init__(self) -> None:
        self._lookup: Lookup | None = None

    def answers(self, question: str) -> list[str]:
        """What can be said to a question, the best first; at least that nothing is known of it."""
        if self._lookup is None:
            # Most starts have another model.
            from exlchat.app.guide.facts import load_facts
            from exlchat.app.guide.lookup import Lookup

            self._lookup = Lookup(load_facts())
        return [quoted(fact) for fact in self._lookup.find(question)[:_OTHERS]] or [UNKNOWN]

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
        """How the next answer has to be: as was asked for, where it is not the guide that answers or a form was wished.

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
        question = next((one.text for one in reversed(branch) if one.role == "user"), "")
        texts = self.answers(question)
        if before is not None and goes_on:
            texts = [text for text in texts if text.startswith(before.text)]
            return _saying(speech, texts[0]) if texts else speech
        if before is not None:
            given = {one.text for one in store.alternatives(before.id)}
            texts = [text for text in texts if text not in given]
        if not texts:
            raise TurnError("the guide has nothing else to quote on this; ask in other words, or load a real model")
        return _saying(speech, texts[0])


def quoted(fact: Fact) -> str:
    """A fact as it is said, with where it is from."""
    if not fact.page:
        return fact.answers[0]
    return f"{fact.answers[0]}\n\n*Quoted from the guide's facts; more in {fact.page}*"


def _wishes_form(speech: AnswerOptions) -> bool:
    """Whether something is asked for that a text given beforehand need not have."""
    forms = ("constraint", "ban", "begin", "min_tokens", "negative")
    return any(getattr(speech, name) != getattr(PLAIN, name) for name in forms)


def _saying(speech: AnswerOptions, text: str) -> AnswerOptions:
    return replace(speech, constraint=Constraint("grammar", f"start: {json.dumps(text, ensure_ascii=False)}"))

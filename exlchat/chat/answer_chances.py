"""The tokens of an answer and how likely each was: kept with it, or by one pass over its prompt and itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import exp

from exlchat.chat.model import Message
from exlchat.chat.prompt.answer_ids import answer_ids, with_own_ids
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.ids import prompt_ids
from exlchat.chat.prompt.inspection import to_ask
from exlchat.chat.prompt.layout import single_texts, token_texts
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.reproduce import changed, prompt_by_record
from exlchat.chat.speakers import char_of
from exlchat.chat.speaking import TurnError, group_at
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.store.kept_chances import unpack_chances
from exlchat.chat.turn_plan import Beginning
from exlchat.llm.events import PlaceChances, PrefillProgress, Scored, TokenChance
from exlchat.llm.port import Cancellation, CanScore, Engine
from exlchat.llm.request import ScoreRequest

TOP = 10
"""How many of the likeliest tokens are told at a place."""
UNSURE = 0.5
"""Below this probability the model was not sure of a token."""


@dataclass(frozen=True, slots=True)
class AnswerChances:
    """An answer laid open.

    Args:
        message_id: of the answer.
        model: who computed this, and whose tokens they are.
        ids: of the answer.
        places: the chances at each of them, and at the one behind the last.
        pieces: the text of each token; where several make one character, the last of them has it.
        texts: of every token that is named, by id.
        ends: tokens that end an answer.
        notices: lines about why these need not be the numbers that the answer was drawn from.
    """

    message_id: str
    model: str
    ids: tuple[int, ...]
    places: tuple[PlaceChances, ...]
    pieces: tuple[str, ...]
    texts: dict[int, str] = field(hash=False)
    ends: frozenset[int]
    notices: tuple[str, ...]

    def unsure(self) -> list[int]:
        return [
            at for at, place in enumerate(self.places) if place.taken is not None and probability(place.taken) < UNSURE
        ]

    def beginning(self, place: int, token_id: int) -> Beginning:
        if token_id in self.ends:
            return Beginning(self.model, self.ids[:place], ended=True)
        return Beginning(self.model, (*self.ids[:place], token_id))


def probability(chance: TokenChance) -> float:
    """From 0 to 1."""
    return exp(chance.log_probability)


def answer_chances(
    store: ConversationStore,
    engine: Engine,
    message_id: str,
    *,
    template: str | None,
    policy: ContextPolicy,
    cancellation: Cancellation | None = None,
) -> Generator[PrefillProgress | AnswerChances, None, None]:
    """Progress, and `AnswerChances` last; without them when it was cancelled.

    What was kept with the answer is told at once. Else the prompt is the one that the answer had, by its record. Of an
    answer without a record, as one that was edited, it is as it would be asked now, in the format `template` and by
    `policy`.

    Raises:
        TurnError: this is no answer, has no text, or answers nothing.
        PromptError: its format is not there, or cannot take the conversation.
        StoreError: the conversation cannot be read.
        RequestError: it is longer than the context.
        ModelError: the engine cannot compute it.
    """
    message = store.message(message_id)
    if message.role != "assistant":
        raise TurnError("only answers have probabilities; go to one that a model gave")
    form, prompt, notices = _prompt(store, engine, message, template=template, policy=policy)
    own = with_own_ids(message, engine.info)
    ids = answer_ids(engine, own.text, own.token_ids)
    if not ids:
        raise TurnError("there is no text in this answer yet")

    def laid_open(places: Sequence[PlaceChances], notices: tuple[str, ...]) -> AnswerChances:
        named = {one.token_id for place in places for one in place.top} | set(ids)
        texts = single_texts(engine, named)
        pieces = tuple(token_texts(engine, ids))
        ends = _ends(engine, form, message)
        return AnswerChances(message.id, engine.info.name, ids, tuple(places), pieces, texts, ends, notices)

    kept = _kept(message, own, ids)
    if kept is not None:
        yield laid_open(kept, ())
        return
    if not isinstance(engine, CanScore):
        mend = "; /logprobs 5 keeps that of the next answers" if engine.capabilities.alternatives else ""
        raise TurnError(f"this model does not tell how likely a text is{mend}")
    request = ScoreRequest((*prompt, *ids), start=len(prompt), top=TOP)
    with (cancellation or Cancellation()).over(engine.score(request)) as events:
        for event in events:
            yield laid_open(event.places, notices) if isinstance(event, Scored) else event


def _kept(message: Message, own: Message, ids: tuple[int, ...]) -> tuple[PlaceChances, ...] | None:
    """Those that were kept when this model gave the answer, and nothing for the place behind it.

    `None` where there are none for some token, or what was kept is damaged.
    """
    record = message.record
    if record is None or record.chances is None or own.token_ids != ids:
        return None
    try:
        places = unpack_chances(record.chances)
    except ValueError:
        return None
    if tuple(place.taken.token_id for place in places if place.taken is not None) != ids:
        return None
    return (*places, PlaceChances(None, ()))


def _prompt(
    store: ConversationStore, engine: Engine, message: Message, *, template: str | None, policy: ContextPolicy
) -> tuple[PromptFormat, tuple[int, ...], tuple[str, ...]]:
    """The ids before an answer's first one, in which format, and what is to be said about them."""
    record = message.record
    branch = store.branch(message.parent_id)
    if not any(one.role == "user" for one in branch) and char_of(message) is None:
        raise TurnError("this was not said by a model: it answers nothing")
    if record is None:
        speaker = char_of(message) if group_at(branch) is not None else None
        asked = to_ask(engine, branch, template=template, policy=policy, speaker=speaker)
        told = "how this answer came to be was not kept; the prompt is what it would be now"
        return asked.form, tuple(prompt_ids(engine, asked.messages, asked.form)), (told,)
    again = prompt_by_record(store, engine, message, record)
    notices = []
    if record.model != engine.info.name:
        notices.append(f"this is an answer of {record.model}; the probabilities are those of {engine.info.name}")
    elif again.same is False:
        notices.append(changed(record))
    return again.form, again.ids[: len(again.ids) - len(again.begun)], tuple(notices)


def _ends(engine: Engine, form: PromptFormat, message: Message) -> frozenset[int]:
    stops = [*engine.info.stop_ids, *stop_conditions(engine, form)]
    if message.record is not None and message.record.model == engine.info.name:
        stops += message.record.speech.stop
    return frozenset(stop for stop in stops if isinstance(stop, int))

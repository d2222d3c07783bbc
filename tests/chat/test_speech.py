"""What an answer is asked to be reaches the engine, holds, and is kept with it; by the bundled guide on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.chat.answer_chances import AnswerChances, answer_chances
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import Message
from exlchat.chat.reproduce import request_again
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.store.kept_chances import pack_chances, unpack_chances
from exlchat.chat.store.rows import pack_record, unpack_record
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import LocalEngine, load
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Finished, PlaceChances, TokenChance
from exlchat.llm.sampling import GREEDY, SamplingSettings
from exlchat.paths import bundled_model
from tests.chat.scripted_engine import ScriptedEngine

WARM = SamplingSettings(temperature=2.0)
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
)


@pytest.fixture(scope="module")
def guide() -> Iterator[LocalEngine]:
    engine = load(bundled_model(), device="cpu", kv_cache="fp32")
    yield engine
    engine.unload()


@pytest.fixture
def store() -> ConversationStore:
    return ConversationStore(None)


def asked(store: ConversationStore, text: str = "How do I load a model?", system: str = "") -> str:
    ident = store.create_conversation().id
    if system:
        store.add_message(ident, "system", system)
    store.add_message(ident, "user", text)
    return ident


def closed(
    store: ConversationStore,
    engine: LocalEngine | ScriptedEngine,
    ident: str,
    speech: AnswerOptions,
    sampling: SamplingSettings = GREEDY,
    **how: str,
) -> Message:
    options = TurnOptions(sampling, max_new_tokens=24, seed=5, speech=speech)
    *_, last = answer(store, engine, ident, options, **how)  # type: ignore[arg-type]
    assert isinstance(last, AnswerClosed)
    stored = store.message(last.message.id)
    assert stored == last.message
    return stored


def test_what_is_asked_for_holds_and_is_kept(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store)
    plain = closed(store, guide, ident, AnswerOptions())
    word = plain.text.split()[3]
    speech = AnswerOptions(ban=(word,), min_tokens=12, draft="off", stop=("\n\n",))
    other = closed(store, guide, ident, speech, retry_of=plain.id)
    assert word.lower() not in other.text.lower()
    assert len(other.token_ids) >= 12
    assert other.record is not None
    assert other.record.speech == speech
    held = closed(store, guide, ident, AnswerOptions(constraint=Constraint("choice", "yes\nno")), retry_of=plain.id)
    assert held.text in ("yes", "no")
    for message in (other, held):
        *_, again = guide.generate(request_again(store, guide, message.id))
        assert isinstance(again, Finished)
        assert again.token_ids == message.token_ids


def test_an_answer_begins_as_it_is_told_to(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store)
    speech = AnswerOptions(begin="Start exlchat with the fol")
    message = closed(store, guide, ident, speech)
    assert message.text.startswith("Start exlchat with the fol")
    assert message.text == guide.decode(message.token_ids)
    assert message.record is not None
    assert len(message.record.healed) == 1, "it was cut within a word"
    *_, again = guide.generate(request_again(store, guide, message.id))
    assert isinstance(again, Finished)
    assert again.token_ids == message.token_ids[message.record.begun_tokens :]
    # Without it the last token stays as it is.
    raw = closed(store, guide, ident, replace(speech, heal=False), retry_of=message.id)
    assert raw.record is not None
    assert raw.record.healed == ()
    assert guide.decode(raw.token_ids[: raw.record.begun_tokens]) == speech.begin


def test_an_answer_that_goes_on_is_held_to_the_whole(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store)
    held = AnswerOptions(constraint=Constraint("regex", "[ab]{40}"))
    options = TurnOptions(GREEDY, max_new_tokens=5, speech=held)
    *_, last = answer(store, guide, ident, options)
    assert isinstance(last, AnswerClosed)
    message = closed(store, guide, ident, held, continue_from=last.message.id)
    assert message.text.startswith(last.message.text)
    assert set(message.text) <= set("ab")


def test_kept_chances_are_told_without_computing(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store)
    message = closed(store, guide, ident, AnswerOptions(logprobs=3), WARM)
    events = list(answer_chances(store, guide, message.id, template=None, policy="stop"))
    assert [type(event) for event in events] == [AnswerChances]
    (kept,) = events
    assert isinstance(kept, AnswerChances)
    computed_from = replace(message, record=replace(message.record, chances=None))  # type: ignore[type-var]
    assert computed_from.record is not None
    bare = closed(store, guide, ident, AnswerOptions(), WARM, retry_of=message.id)
    assert bare.token_ids == message.token_ids, "to ask for chances changes no token"
    *_, computed = answer_chances(store, guide, bare.id, template=None, policy="stop")
    assert isinstance(computed, AnswerChances)
    assert kept.ids == computed.ids
    assert kept.pieces == computed.pieces
    for mine, its in zip(kept.places[:-1], computed.places[:-1], strict=True):
        assert mine.taken is not None
        assert its.taken is not None
        assert mine.taken.rank == its.taken.rank
        assert mine.taken.log_probability == pytest.approx(its.taken.log_probability, abs=1e-3)
        assert [one.token_id for one in mine.top] == [one.token_id for one in its.top[:3]]


def test_chances_survive_being_packed() -> None:
    places = (
        PlaceChances(TokenChance(7, -0.5, 2), (TokenChance(9, -0.25, 1), TokenChance(7, -0.5, 2))),
        PlaceChances(None, ()),
        PlaceChances(TokenChance(2**32 - 1, -100.0, 99), ()),
    )
    assert unpack_chances(pack_chances(places)) == places
    for damaged in ("", "x", "!!!", pack_chances(places)[:-8], "AAAA"):
        with pytest.raises(ValueError, match="damaged"):
            unpack_chances(damaged)


@pytest.mark.parametrize(
    "wrong",
    [
        {"speech": 5},
        {"speech": {"constraint": 5}},
        {"speech": {"constraint": {"kind": "poem", "text": "x"}}},
        {"speech": {"ban": [5]}},
        {"speech": {"begin": 5}},
        {"speech": {"draft": "magic"}},
        {"healed": ["x"]},
        {"chances": 5},
    ],
)
def test_a_damaged_record_is_none_and_breaks_nothing(wrong: dict[str, object], store: ConversationStore) -> None:
    engine = ScriptedEngine()
    engine.will_say("Well.")
    message = closed(store, engine, asked(store), AnswerOptions(ban=("x",)))
    packed = json.loads(pack_record(message.record) or "")
    assert unpack_record(json.dumps(packed)) == message.record
    assert unpack_record(json.dumps({**packed, **wrong})) is None


def test_a_record_of_before_speech_says_what_ended_it() -> None:
    old = {"model": "m", "template": "t", "sampling": {}, "stats": None, "finish_reason": None, "stop": ["END", 5]}
    record = unpack_record(json.dumps(old))
    assert record is not None
    assert record.speech == AnswerOptions(stop=("END", 5))


def test_thoughts_are_closed_and_a_constraint_holds_behind_them(store: ConversationStore) -> None:
    engine = ScriptedEngine(chat_template=THINKS)
    for speech in (
        AnswerOptions(thinking_budget=9),
        AnswerOptions(constraint=Constraint("choice", "a")),
        AnswerOptions(),
    ):
        engine.will_say("Hm.</think>\n\nWell.")
        message = closed(store, engine, asked(store), speech)
        limit = engine.requests[-1].thoughts
        assert limit is not None
        if speech == AnswerOptions():
            assert (limit.tokens, limit.closing_ids) == (None, ())
            continue
        assert (limit.tokens, limit.opened) == (speech.thinking_budget, True)
        closing = engine.text_with_special_tokens(list(limit.closing_ids))
        assert closing.strip() == "</think>"
        # One that goes on behind its thoughts is no longer inside them.
        engine.will_say(" More.")
        options = TurnOptions(GREEDY, speech=speech)
        list(answer(store, engine, message_conversation(store, message), options, continue_from=message.id))
        assert engine.requests[-1].thoughts is not None
        assert not engine.requests[-1].thoughts.opened


def message_conversation(store: ConversationStore, message: Message) -> str:
    return next(one.id for one in store.list_conversations() if store.load(one.id).tip_id == message.id)


def test_the_negative_prompt_is_the_conversation_with_another_system_prompt(store: ConversationStore) -> None:
    engine = ScriptedEngine()
    leaning = SamplingSettings(guidance_scale=1.5)
    told = []
    for sampling, speech in (
        (GREEDY, AnswerOptions(negative="Be long.")),
        (leaning, AnswerOptions(negative="Be long.")),
        (leaning, AnswerOptions()),
    ):
        engine.will_say("Well.")
        closed(store, engine, asked(store, system="Be brief."), speech, sampling)
        request = engine.requests[-1]
        told.append(engine.text_with_special_tokens(list(request.guidance_ids)))
        prompt = engine.text_with_special_tokens(list(request.prompt_ids))
    assert told == ["", prompt.replace("Be brief.", "Be long."), told[2]]
    assert "Be" not in told[2]
    assert "load a model" in told[2]


def test_who_drafts_unless_it_is_said() -> None:
    assert AnswerOptions().drafted_by(draft_model=False) == "auto"
    assert AnswerOptions().drafted_by(draft_model=True) == "model"
    assert AnswerOptions(draft="off").drafted_by(draft_model=True) == "off"


def test_a_draft_model_is_loaded_and_changes_no_token(store: ConversationStore) -> None:
    from exlchat.engine.draft.loading import load_draft

    small = load_draft(
        Path(bundled_model()),
        context=600,
        device="cpu",
        kv_cache="fp32",
        extension=False,
        build_cache=None,
        on_progress=None,
    )
    assert small.info.max_seq_len == 600
    engine = load(bundled_model(), device="cpu", kv_cache="fp32", draft=small)
    try:
        assert engine.info.draft_model == small.info.name
        ident = asked(store)
        plain = closed(store, engine, ident, AnswerOptions(draft="off"))
        drafted = closed(store, engine, ident, AnswerOptions(), retry_of=plain.id)
        assert drafted.token_ids == plain.token_ids
        assert drafted.record is not None
        assert drafted.record.stats is not None
        assert drafted.record.stats.drafted > 0
        # It guesses as the large one speaks; what was guessed last may stand behind the end.
        assert drafted.record.stats.accepted >= drafted.record.stats.drafted - 8
    finally:
        engine.unload()


@pytest.mark.parametrize("wrong", [{"stop": ("",)}, {"ban": ("",)}, {"min_tokens": -1}, {"logprobs": 101}])
def test_what_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AnswerOptions(**wrong)  # type: ignore[arg-type]

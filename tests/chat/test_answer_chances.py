"""The chances of an answer's tokens by its record, and answers that take another one; by the bundled guide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from exlchat.app.chat.answering import was_cut
from exlchat.chat.answer_chances import AnswerChances, Beginning, answer_chances
from exlchat.chat.model import Message
from exlchat.chat.prompt.ids import prompt_ids, prompt_messages
from exlchat.chat.prompt_format import choose_format
from exlchat.chat.reproduce import prompt_by_record, request_again
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import LocalEngine, load
from exlchat.llm.events import Finished, PrefillProgress
from exlchat.llm.port import Engine
from exlchat.llm.sampling import GREEDY, SamplingSettings
from exlchat.paths import bundled_model

WARM = SamplingSettings(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def guide() -> Iterator[LocalEngine]:
    engine = load(bundled_model(), device="cpu", kv_cache="fp32")
    yield engine
    engine.unload()


@pytest.fixture
def store() -> ConversationStore:
    return ConversationStore(None)


def asked(store: ConversationStore, *texts: str) -> str:
    ident = store.create_conversation().id
    for text in texts:
        store.add_message(ident, "user", text)
    return ident


def closed(
    store: ConversationStore, engine: Engine, ident: str, sampling: SamplingSettings = GREEDY, **how: object
) -> Message:
    options = TurnOptions(sampling, max_new_tokens=12, seed=5)
    *_, last = answer(store, engine, ident, options, **how)
    assert isinstance(last, AnswerClosed)
    return last.message


def laid_open(store: ConversationStore, engine: Engine, message: Message) -> AnswerChances:
    *progress, last = answer_chances(store, engine, message.id, template=None, policy="stop")
    assert isinstance(last, AnswerChances)
    assert all(isinstance(one, PrefillProgress) for one in progress)
    return last


def prompt_of(store: ConversationStore, engine: Engine, message: Message) -> Sequence[int]:
    """What the model saw before this answer, begun or not."""
    again = prompt_by_record(store, engine, message, message.record)  # type: ignore[arg-type]
    assert again.same
    return again.ids


def assert_by_logits(guide: LocalEngine, chances: AnswerChances, prompt: Sequence[int]) -> None:
    """The numbers are those of the whole sequence computed at once."""
    rows = guide.logits([*prompt, *chances.ids]).double().log_softmax(-1)[len(prompt) - 1 :]
    assert len(rows) == len(chances.places) == len(chances.ids) + 1
    for token, place, row in zip([*chances.ids, None], chances.places, rows, strict=True):
        assert len({one.token_id for one in place.top}) == 10
        # By value: tokens that are as good as equally likely may change places, since the sums have another order.
        of_top = [float(row[one.token_id]) for one in place.top]
        assert of_top == pytest.approx(row.topk(10).values.tolist(), abs=1e-3)
        assert [one.log_probability for one in place.top] == pytest.approx(of_top, abs=1e-3)
        assert (place.taken is None) == (token is None)
        if place.taken is not None:
            assert place.taken.token_id == token
            assert place.taken.log_probability == pytest.approx(float(row[token]), abs=1e-3)
            assert place.taken.rank == int((row > row[token]).sum()) + 1


def test_an_answer_is_laid_open_behind_the_prompt_it_had(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store, "How do I load a model?")
    first = closed(store, guide, ident)
    longer = closed(store, guide, ident, continue_from=first.id)
    store.add_message(ident, "user", "And a theme?")
    second = closed(store, guide, ident, WARM)
    for message in (first, second):
        chances = laid_open(store, guide, message)
        assert chances.ids == message.token_ids
        assert chances.notices == ()
        assert "".join(chances.pieces) == message.text
        assert_by_logits(guide, chances, prompt_of(store, guide, message))
    # The one that was gone on with is laid open from its first token on.
    whole = laid_open(store, guide, longer)
    assert whole.ids == longer.token_ids
    assert len(whole.ids) > len(first.token_ids)
    assert_by_logits(guide, whole, prompt_of(store, guide, first))
    assert [one.taken.rank for one in whole.places if one.taken] == [1] * len(whole.ids), "it was greedy"


def test_an_answer_goes_on_from_exactly_the_token_that_was_taken(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store, "How do I load a model?")
    old = closed(store, guide, ident)
    store.add_message(ident, "user", "And a theme?")
    last = closed(store, guide, ident)
    chances = laid_open(store, guide, old)
    for place, rank in ((0, 2), (4, 3), (len(chances.ids), 2)):
        token = next(one.token_id for one in chances.places[place].top[rank - 1 :] if one.token_id not in chances.ends)
        beginning = chances.beginning(place, token)
        assert beginning == Beginning("guide", (*old.token_ids[:place], token))
        new = closed(store, guide, ident, continue_from=old.id, beginning=beginning)
        assert new.token_ids[: place + 1] == beginning.token_ids
        assert len(new.token_ids) > place + 1
        assert new.text == guide.decode(new.token_ids)
        assert (new.parent_id, new.edited_from) == (old.parent_id, old.id)
        assert new.record is not None
        assert new.record.begun_tokens == place + 1
        *_, again = guide.generate(request_again(store, guide, new.id))
        assert isinstance(again, Finished)
        assert again.token_ids == new.token_ids[place + 1 :]
        assert store.load(ident).branch[-1].id == new.id
        undone = store.undo(ident)
        assert undone is not None
        assert undone.what == "another token"
        assert store.load(ident).branch[-1].id == last.id
        assert store.message(old.id) == old
    assert len(store.alternatives(old.id)) == 4


def test_a_character_that_is_taken_by_halves(guide: LocalEngine, store: ConversationStore) -> None:
    """Its ids stay as they are; the text has what is whole, now and later."""
    ident = asked(store, "How do I load a model?")
    old = closed(store, guide, ident)
    half = next(token for token in range(guide.info.vocab_size) if guide.decode([token]) == "\ufffd")
    beginning = Beginning("guide", (*old.token_ids[:3], half))
    new = closed(store, guide, ident, WARM, continue_from=old.id, beginning=beginning)
    assert new.token_ids[:4] == beginning.token_ids
    assert new.text == guide.decode(new.token_ids)
    begun = store.branch(new.id)
    assert begun[-1].text.startswith(guide.decode(old.token_ids[:3]))
    # Two tokens that a tokenizer would join stay two.
    letters = [guide.encode(letter, special=False)[-1] for letter in "the"]
    apart = Beginning("guide", (*old.token_ids[:3], *letters))
    spelled = closed(store, guide, ident, continue_from=old.id, beginning=apart)
    assert spelled.token_ids[:6] == apart.token_ids
    store.add_message(ident, "user", "And then?")
    following = closed(store, guide, ident)
    form, _ = choose_format(guide.info, None, None)  # type: ignore[arg-type]
    ids = prompt_ids(guide, prompt_messages(store.branch(following.parent_id)), form)
    assert any(tuple(ids[at : at + 6]) == apart.token_ids for at in range(len(ids))), "and so the next prompt has them"


def test_the_end_of_an_answer_can_be_taken(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store, "How do I load a model?")
    old = closed(store, guide, ident)
    chances = laid_open(store, guide, old)
    assert chances.ends >= set(guide.info.stop_ids)
    ended = closed(store, guide, ident, continue_from=old.id, beginning=chances.beginning(3, guide.info.stop_ids[0]))
    assert (ended.token_ids, ended.status) == (old.token_ids[:3], "complete")
    assert ended.text == guide.decode(old.token_ids[:3])
    assert not was_cut(ended)
    assert laid_open(store, guide, ended).ids == ended.token_ids
    store.undo(ident)
    assert store.load(ident).branch[-1].id == old.id


def test_answers_without_a_record_and_of_other_models_say_so(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store, "How do I load a model?")
    old = closed(store, guide, ident)
    by_hand = store.edit(old.id, "You load it so.")
    (notice,) = laid_open(store, guide, by_hand).notices
    assert "was not kept" in notice
    assert laid_open(store, guide, by_hand).ids == tuple(guide.encode("You load it so.", special=False))
    assert old.record is not None
    other = store.begin_answer(ident, old.parent_id, record=replace(old.record, model="other"))
    other = store.close_answer(other.id, "You load it so.", [1, 2], "complete")
    chances = laid_open(store, guide, other)
    assert chances.notices == ("this is an answer of other; the probabilities are those of guide",)
    assert chances.ids == tuple(guide.encode("You load it so.", special=False))
    with pytest.raises(TurnError, match="one of other; guide is loaded now"):
        closed(store, guide, ident, continue_from=other.id, beginning=Beginning("other", (1,)))
    carried = store.edit(store.load(ident).branch[0].id, "How do I load a theme?", carry=True)
    assert carried.parent_id is None
    (notice,) = laid_open(store, guide, store.load(ident).branch[-1]).notices
    assert "other" in notice or "no longer what the model saw" in notice


def test_what_was_left_out_stays_left_out(guide: LocalEngine, store: ConversationStore) -> None:
    """The prompt is that of the record, though the policy is another one by now."""
    ident = asked(store)
    small = load(bundled_model(), device="cpu", kv_cache="fp32", max_seq_len=256)
    cut = None
    for number in range(12):
        store.add_message(ident, "user", f"{number}: how do I load a model from a folder that has a rather long name?")
        options = TurnOptions(GREEDY, max_new_tokens=12, context_policy="drop")
        *_, last = answer(store, small, ident, options)
        assert isinstance(last, AnswerClosed)
        cut = last.message
    assert cut is not None
    assert cut.record is not None
    assert cut.record.seen_from is not None
    chances = laid_open(store, small, cut)
    assert chances.notices == ()
    assert [one.taken.rank for one in chances.places if one.taken] == [1] * len(cut.token_ids)
    small.unload()


def test_what_has_no_tokens_is_refused(guide: LocalEngine, store: ConversationStore) -> None:
    ident = asked(store)
    greeting = store.begin_answer(ident, None)
    greeting = store.close_answer(greeting.id, "Hello!", [], "complete")
    question = store.add_message(ident, "user", "And?")
    empty = store.begin_answer(ident, question.id)
    for message, line in ((question, "only answers"), (greeting, "answers nothing"), (empty, "no text")):
        with pytest.raises(TurnError, match=line):
            laid_open(store, guide, message)

"""What a request may ask of an answer beside how it is drawn: least length, healing, thoughts, constraints, chances."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from exlchat.engine import (
    Finished,
    GenerationRequest,
    LocalEngine,
    ModelError,
    RequestError,
    SamplingSettings,
    TextDelta,
    load,
)
from exlchat.llm.constraint import Constraint
from exlchat.llm.repetition_watch import LEAST_TOKENS, RepetitionWatch
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts
from exlchat.paths import bundled_model
from tests.endless_model import save_llama_without_end

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    path = save_llama_without_end(tmp_path_factory.mktemp("model"))
    return load(path, device="cpu", kv_cache="fp32")


@pytest.fixture(scope="module")
def guide() -> LocalEngine:
    return load(bundled_model(), device="cpu")


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def test_no_stop_token_comes_before_the_least(engine: LocalEngine) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=30)))
    stop = plain.token_ids[3]
    request = GenerationRequest(PROMPT, max_new_tokens=30, stop=[stop], min_new_tokens=12)
    last = finish(engine.generate(request))
    assert len(last.token_ids) >= 12
    assert stop not in last.token_ids[:12]
    assert last.token_ids[:3] == plain.token_ids[:3]


@pytest.mark.parametrize(("least", "most"), [(5, 4), (-1, None)])
def test_a_least_that_cannot_be_is_refused(engine: LocalEngine, least: int, most: int | None) -> None:
    with pytest.raises(RequestError, match="min_new_tokens is"):
        engine.generate(GenerationRequest(PROMPT, min_new_tokens=least, max_new_tokens=most))


def test_a_cut_word_goes_on_as_if_it_had_not_been_cut(guide: LocalEngine) -> None:
    question = guide.encode("How do I open a model?")
    whole = guide.encode(" Start exlchat with the folder")
    cut = guide.encode(" Start exlchat with the fol")
    request = GenerationRequest([*question, *cut], begun=len(cut), heal=True, max_new_tokens=4)
    last = finish(guide.generate(request))
    assert last.healed == 1
    first = last.token_ids[0]
    taken_back = guide.decode([whole[0], cut[-1]]).removeprefix(guide.decode([whole[0]]))
    begins = guide.decode([whole[0], first]).removeprefix(guide.decode([whole[0]]))
    assert begins.startswith(taken_back)
    # What was shown of the cut token is not shown again.
    assert guide.decode([*cut[:-1], *last.token_ids]) == guide.decode(cut) + last.text


def test_a_special_token_is_not_healed(guide: LocalEngine) -> None:
    stop = guide.info.stop_ids[0]
    request = GenerationRequest([*guide.encode("Hello"), stop], begun=1, heal=True, max_new_tokens=2)
    assert finish(guide.generate(request)).healed == 0


@pytest.mark.parametrize("opened", [True, False])
def test_thoughts_are_closed_when_they_have_been_long_enough(engine: LocalEngine, opened: bool) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40)))
    opening = "<x>" if opened else plain.text[:1]
    closing = tuple(engine.encode("</x>"))
    limit = Thoughts(ThinkingMarks(opening, "</x>", opened=opened), "", 7, closing)
    events = list(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40, thoughts=limit)))
    last = events[-1]
    assert isinstance(last, Finished)
    at = last.text.index("</x>")
    assert last.token_ids[:7] == plain.token_ids[:7]
    assert last.token_ids[7 : 7 + len(closing)] == closing
    assert len(last.token_ids) == 40
    assert "</x>" not in last.text[at + 1 :]
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert sum((event.token_ids for event in deltas), ()) == last.token_ids
    # The rest is what the model says behind a closed thought.
    behind = [*PROMPT, *last.token_ids[: 7 + len(closing)]]
    rest = finish(engine.generate(GenerationRequest(behind, max_new_tokens=40 - 7 - len(closing))))
    assert rest.token_ids == last.token_ids[7 + len(closing) :]


def test_an_answer_without_thoughts_is_left_alone(engine: LocalEngine) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40)))
    limit = Thoughts(ThinkingMarks("<nothing like it>", "</x>"), "", 3, tuple(engine.encode("</x>")))
    assert finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40, thoughts=limit))).text == plain.text


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_an_answer_is_what_it_has_to_be(engine: LocalEngine, draft: str) -> None:
    pattern = "[a-c]{3}-(yes|no)!"
    for seed in range(8):
        request = GenerationRequest(
            PROMPT,
            SamplingSettings(1.5),
            seed=seed,
            max_new_tokens=60,
            constraint=Constraint("regex", pattern),
            draft="ngram" if draft == "ngram" else "off",
        )
        last = finish(engine.generate(request))
        assert re.fullmatch(pattern, last.text)
        assert last.reason == "stop_token"


def test_a_constraint_holds_behind_thoughts(engine: LocalEngine) -> None:
    limit = Thoughts(ThinkingMarks("<x>", "</x>", opened=True), "", 5, tuple(engine.encode("</x>")))
    constraint = Constraint("choice", "yes\nno")
    request = GenerationRequest(PROMPT, SamplingSettings(1.5), seed=1, thoughts=limit, constraint=constraint)
    last = finish(engine.generate(request))
    assert last.text.partition("</x>")[2] in ("yes", "no")


def test_a_constraint_and_a_ban_hold_together(engine: LocalEngine) -> None:
    for seed in range(8):
        request = GenerationRequest(
            PROMPT, SamplingSettings(1.5), seed=seed, constraint=Constraint("choice", "yes\nno\nnone"), banned=["NO"]
        )
        assert finish(engine.generate(request)).text == "yes"


def test_a_ban_that_leaves_nothing_says_so(engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, constraint=Constraint("choice", "yes\nno"), banned=["yes", "no"])
    with pytest.raises(ModelError, match="the answer cannot go on"):
        list(engine.generate(request))


def test_an_answer_that_goes_on_is_held_to_the_whole(engine: LocalEngine) -> None:
    said = engine.encode("ab")
    request = GenerationRequest([*PROMPT, *said], begun=len(said), constraint=Constraint("regex", "abc+d"))
    assert re.fullmatch("c+d", finish(engine.generate(request)).text)
    wrong = dataclasses.replace(request, constraint=Constraint("regex", "x+"))
    with pytest.raises(RequestError, match="the answer so far does not match"):
        engine.generate(wrong)


def test_the_chances_of_every_token_are_those_of_a_score(engine: LocalEngine) -> None:
    from exlchat.llm.events import Scored
    from exlchat.llm.request import ScoreRequest

    request = GenerationRequest(PROMPT, SamplingSettings(1.2), seed=4, max_new_tokens=12, alternatives=3)
    events = list(engine.generate(request))
    last = events[-1]
    assert isinstance(last, Finished)
    told = [chance for event in events if isinstance(event, TextDelta) for chance in event.chances]
    assert tuple(told) == last.chances
    assert [place.taken.token_id for place in last.chances if place.taken] == list(last.token_ids)
    scored = list(engine.score(ScoreRequest([*PROMPT, *last.token_ids], len(PROMPT), top=3)))[-1]
    assert isinstance(scored, Scored)
    for mine, its in zip(last.chances, scored.places, strict=False):
        assert [one.token_id for one in mine.top] == [one.token_id for one in its.top]
        assert mine.taken is not None
        assert its.taken is not None
        assert mine.taken.log_probability == pytest.approx(its.taken.log_probability, abs=1e-4)


def test_guidance_leans_away_from_the_other_prompt(engine: LocalEngine) -> None:
    other = list(range(200, 230))
    request = GenerationRequest(
        PROMPT, SamplingSettings(temperature=0.0, guidance_scale=1.7), max_new_tokens=10, guidance_ids=other
    )
    last = finish(engine.generate(request))
    said: list[int] = []
    for token in last.token_ids:
        mine = engine.logits([*PROMPT, *said])[-1].double().log_softmax(0)
        theirs = engine.logits([*other, *said])[-1].double().log_softmax(0)
        assert token == int(torch.argmax(1.7 * mine - 0.7 * theirs))
        said.append(token)
    again = finish(engine.generate(request))
    assert again.token_ids == last.token_ids
    with pytest.raises(RequestError, match="needs a prompt to lean away from"):
        engine.generate(dataclasses.replace(request, guidance_ids=()))


def test_a_stuck_answer_ends_and_says_so(guide: LocalEngine) -> None:
    prompt = guide.encode("What is a theme? ") * 2
    stops = list(guide.info.stop_ids)
    request = GenerationRequest(
        prompt, SamplingSettings(temperature=0.0, banned_tokens=tuple(stops)), max_new_tokens=1500, stop_repeating=True
    )
    last = finish(guide.generate(request))
    assert last.reason == "repeating"
    assert len(last.token_ids) < 1500
    longer = dataclasses.replace(request, stop_repeating=False, max_new_tokens=len(last.token_ids) + 20)
    assert finish(guide.generate(longer)).reason == "max_new_tokens"


@pytest.mark.parametrize("period", [1, 2, 7, 40, 200])
def test_only_what_says_the_same_over_and_over_is_stuck(period: int) -> None:
    passage = list(range(period))
    watch = RepetitionWatch()
    turns = 0
    while not watch.stuck and turns < 1000:
        for token in passage:
            watch.push(token)
        turns += 1
    assert turns * period >= LEAST_TOKENS
    assert turns <= max(6, LEAST_TOKENS // period + 2)
    watch.back(period)
    assert watch.stuck == ((turns - 1) * period >= LEAST_TOKENS and turns - 1 >= 6)
    # A counter in it, and it is not the same.
    watch = RepetitionWatch()
    for turn in range(100):
        for token in [1000 + turn, *passage]:
            watch.push(token)
    assert period < 240 or not watch.stuck


def test_controls_that_a_model_cannot_have_are_refused_when_they_are_set(engine: LocalEngine, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no token 5000"):
        engine.check(GenerationRequest((), SamplingSettings(banned_tokens=(5000,))))
    with pytest.raises(RequestError, match="regex"):
        engine.check(GenerationRequest((), constraint=Constraint("regex", "(unclosed")))
    engine.check(GenerationRequest((), SamplingSettings(dry_multiplier=0.8), constraint=Constraint("choice", "a\nb")))


def test_an_answer_that_goes_on_behind_its_thoughts_is_held_behind_them(engine: LocalEngine) -> None:
    """The prompt had opened the thoughts, so that only their end is in the answer so far."""
    limit = Thoughts(ThinkingMarks("<x>", "</x>"))
    said = engine.encode("hm</x>ye")
    request = GenerationRequest(
        [*PROMPT, *said], begun=len(said), constraint=Constraint("choice", "yes\nno"), thoughts=limit
    )
    assert finish(engine.generate(request)).text == "s"


def test_guidance_leans_away_behind_a_healed_token_as_well(guide: LocalEngine) -> None:
    question = guide.encode("How do I load a model?")
    said = guide.encode(" Start exlchat with the fol")
    other = guide.encode("Name a colour.")
    leaning = SamplingSettings(temperature=0.0, guidance_scale=1.5)
    request = GenerationRequest(
        [*question, *said], leaning, begun=len(said), heal=True, max_new_tokens=3, guidance_ids=[*other, *said]
    )
    last = finish(guide.generate(request))
    assert last.healed == 1
    # The tokens behind the healed one are those that both prompts give behind the answer so far.
    kept, spoken = said[:-1], list(last.token_ids)
    for at in range(1, len(spoken)):
        answer = [*kept, *spoken[:at]]
        mine = guide.logits([*question, *answer])[-1].double().log_softmax(0)
        theirs = guide.logits([*other, *answer])[-1].double().log_softmax(0)
        assert spoken[at] == int(torch.argmax(1.5 * mine - 0.5 * theirs))


def test_a_cut_answer_that_has_a_form_goes_on_in_it_wherever_it_was_cut(guide: LocalEngine) -> None:
    text = "A token is the piece of text that a model reads."
    question = guide.encode("What is a token?")
    held = GenerationRequest(question, constraint=Constraint("grammar", f'start: "{text}"'))
    ids = finish(guide.generate(held)).token_ids
    for cut in range(1, len(ids)):
        said = ids[:cut]
        goes_on = dataclasses.replace(held, prompt_ids=[*question, *said], begun=cut, heal=True)
        last = finish(guide.generate(goes_on))
        assert guide.decode(said) + last.text == text

"""Banned strings: an answer goes back to before them, and nothing of them is ever shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exlchat.engine import Finished, GenerationRequest, LocalEngine, RequestError, SamplingSettings, TextDelta, load
from exlchat.engine.text.stream import TextStream
from tests.endless_model import save_llama_without_end
from tests.engine.test_text_stream import TOKENIZERS

PROMPT = list(range(10, 40))
ALPHABET = "abAB é\u0130🦙ß"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    path = save_llama_without_end(tmp_path_factory.mktemp("model"))
    return load(path, device="cpu", kv_cache="fp32")


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def lower(text: str) -> str:
    return "".join(char.lower() for char in text)


@TOKENIZERS
@settings(max_examples=300)
@given(
    choices=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=3), min_size=1, max_size=30),
    banned=st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4),
    stop=st.lists(st.text(ALPHABET, min_size=1, max_size=3), max_size=2),
    text=st.text(ALPHABET, max_size=40),
    cuts=st.lists(st.integers(0, 5), max_size=20),
)
def test_nothing_banned_is_ever_shown_however_the_text_comes(  # noqa: PLR0917
    make: object, choices: list[list[int]], banned: list[str], stop: list[str], text: str, cuts: list[int]
) -> None:
    """A writer that wants a text, and takes other tokens where it is sent back to."""
    tokenizer = make()  # type: ignore[operator]
    wanted = tokenizer.encode(text, add_special_tokens=False).ids
    before = tokenizer.encode(text[: cuts[0]] if cuts else "", add_special_tokens=False).ids
    stream = TextStream(tokenizer.decode, stop, before=before, banned=banned)
    ids: list[int] = []
    shown, tries = "", {}
    for _ in range(400):
        place = len(ids)
        if place == len(wanted) or stream.stopped:
            break
        others = choices[place % len(choices)]
        at = tries.get(place, 0)
        token = wanted[place] if at == 0 else others[min(at - 1, len(others) - 1)]
        if at > len(others):
            break
        ids.append(token % tokenizer.get_vocab_size())
        shown += stream.push(ids[-1])
        if stream.back:
            del ids[len(ids) - stream.back :]
            tries = {key: value for key, value in tries.items() if key <= len(ids)}
            tries[len(ids)] = tries.get(len(ids), 0) + 1
        assert stream.held_tokens <= len(ids)
        assert not any(lower(ban) in lower(shown) for ban in banned)
    shown += stream.finish()
    assert not any(lower(ban) in lower(shown) for ban in banned)
    if not stream.stopped and not any(lower(ban) in lower(tokenizer.decode(ids)) for ban in banned):
        after = tokenizer.decode([*before, *ids])
        if "\ufffd" not in after:
            assert after.endswith(shown)
            assert len(shown) >= len(after) - len(tokenizer.decode(before)) - 1


@pytest.mark.parametrize("sampling", [SamplingSettings(temperature=0.0), SamplingSettings(1.2)])
def test_an_answer_goes_another_way_and_the_same_again(engine: LocalEngine, sampling: SamplingSettings) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=60, seed=3)))
    # What it says in the middle, over several tokens and in other letters.
    banned = engine.decode(plain.token_ids[20:24]).upper()
    assert len(banned) > 1
    request = GenerationRequest(PROMPT, sampling, max_new_tokens=60, seed=3, banned=[banned])
    other = finish(engine.generate(request))
    same = 0
    while other.token_ids[same] == plain.token_ids[same]:
        same += 1
    assert same < 24
    assert lower(banned) not in lower(other.text)
    assert len(other.token_ids) == other.stats.new_tokens == 60
    assert other.stats.rewound > 0
    assert engine.decode(other.token_ids) == other.text
    again = finish(engine.generate(request))
    assert (again.text, again.token_ids) == (other.text, other.token_ids)
    # The cache holds what was said, and not what was taken back.
    continued = [*PROMPT, *other.token_ids[:30]]
    assert finish(engine.generate(GenerationRequest(continued, max_new_tokens=5))).stats.cached_tokens >= 30


def test_ids_that_may_be_taken_back_are_not_told(engine: LocalEngine) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40)))
    banned = engine.decode(plain.token_ids[10:15])
    events = list(engine.generate(GenerationRequest(PROMPT, max_new_tokens=40, banned=[banned])))
    last = events[-1]
    assert isinstance(last, Finished)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert sum((event.token_ids for event in deltas), ()) == last.token_ids
    assert "".join(event.text for event in deltas) == last.text


def test_too_much_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(RequestError, match="20,000 strings are banned; there can be 10,000"):
        engine.generate(GenerationRequest(PROMPT, banned=[str(n) for n in range(20_000)]))

"""`exlchat serve` as the engine of another exlchat: by ids, token by token what the model says here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from exlchat import engine, paths
from exlchat.api.voice import Voice
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.prompt_format import choose_format
from exlchat.llm.events import Finished
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest, Rank
from exlchat.llm.sampling import SamplingSettings
from exlchat.remote.address import Address, Remote
from exlchat.remote.engine import RemoteEngine, connect
from tests.noted_ranks import NotedRanks
from tests.server.served import Served, serving

GREEDY = SamplingSettings(temperature=0.0)


@pytest.fixture(scope="module")
def local() -> Iterator[Engine]:
    loaded = engine.load(paths.bundled_model(), device="cpu", kv_cache="fp32", bundled=True)
    yield loaded
    loaded.unload()


@pytest.fixture(scope="module")
def served(local: Engine) -> Iterator[Served]:
    with serving(local) as found:
        yield found


@pytest.fixture(scope="module")
def there(served: Served) -> RemoteEngine:
    return connect(Remote("ours", Address.parse(served.url)))


def answer(model: Engine, ids: list[int], most: int) -> Finished:
    *_, last = model.generate(GenerationRequest(tuple(ids), sampling=GREEDY, max_new_tokens=most))
    assert isinstance(last, Finished)
    return last


def test_it_is_asked_by_ids_and_known_as_the_model_is(there: RemoteEngine, local: Engine) -> None:
    assert (there.server.kind, there.server.level) == ("exlchat", "ids")
    for name in ("vocab_size", "max_seq_len", "chat_template", "bos_token", "eos_token", "parameters"):
        assert getattr(there.info, name) == getattr(local.info, name), name


@pytest.mark.parametrize("text", ["What is EXL2?", "漢字 and ümlaut", "<|im_end|>\n", "a  b\n\n c"])
@pytest.mark.parametrize("special", [True, False])
def test_ids_are_those_of_the_tokenizer_here(there: RemoteEngine, local: Engine, text: str, special: bool) -> None:
    ids = local.encode(text, special=special)
    assert there.encode(text, special=special) == ids
    assert there.decode(ids, special=True) == local.decode(ids, special=True)


def test_answers_are_those_of_the_model_here(there: RemoteEngine, local: Engine) -> None:
    ids = local.encode("<s><|im_start|>user\nWhat is EXL2?<|im_end|>\n<|im_start|>assistant\n")
    found, wanted = answer(there, ids, 40), answer(local, ids, 40)
    assert (found.text, found.token_ids, found.reason) == (wanted.text, wanted.token_ids, wanted.reason)


def test_whether_an_answer_may_repeat_itself_is_said_here(local: Engine) -> None:
    ids = local.encode("<s><|im_start|>user\nSay %<|im_end|>\n<|im_start|>assistant\n" + "%" * 40)
    request = GenerationRequest(tuple(ids), sampling=GREEDY, max_new_tokens=400, min_new_tokens=400)
    with serving(local, voice=Voice(sampling=GREEDY, speech=AnswerOptions(stop_repeating=True))) as served:
        there = connect(Remote("ours", Address.parse(served.url)))
        for stop_repeating, reason in ((False, "max_new_tokens"), (True, "repeating")):
            *_, last = there.generate(replace(request, stop_repeating=stop_repeating))
            assert isinstance(last, Finished)
            assert last.reason == reason


def test_a_second_turn_reads_what_is_new(there: RemoteEngine, local: Engine) -> None:
    ids = local.encode("<s><|im_start|>user\n" + "Tell me of caches. " * 60 + "<|im_end|>\n<|im_start|>assistant\n")
    first = answer(there, ids, 8)
    more = local.encode("<|im_end|>\n<|im_start|>user\nMore?<|im_end|>\n<|im_start|>assistant\n")
    second = answer(there, [*ids, *first.token_ids, *more], 4)
    assert second.stats.cached_tokens >= len(ids) - 1


@pytest.mark.parametrize("level", ["ids", "messages"])
def test_who_steps_back_here_steps_back_there(local: Engine, level: str) -> None:
    """A run of a file, or a title, does not go before somebody else who asks that server."""
    noted = NotedRanks(local)
    with serving(noted) as served:  # type: ignore[arg-type]
        there = connect(Remote("ours", Address.parse(served.url), level=level))
        ids = there.encode("<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        if level == "messages":
            form = choose_format(there.info, None)[0]
            ids = there.encode(form.render([{"role": "user", "content": "Hi"}], bos_token="", eos_token=""))
        for rank in Rank:
            *_, last = there.generate(GenerationRequest(tuple(ids), sampling=GREEDY, max_new_tokens=1, rank=rank))
            assert isinstance(last, Finished)
    assert noted.ranks == [Rank.API, Rank.API, Rank.BULK, Rank.IDLE]

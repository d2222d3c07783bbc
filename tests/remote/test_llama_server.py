"""The remote engine over llama.cpp's own server, beside the same weights in our engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt_format import choose_format
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import LocalEngine, load
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Finished, OneOfSeveral, PrefillProgress, TextDelta
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import GREEDY, SamplingSettings
from exlchat.paths import bundled_model
from exlchat.remote.address import Address, Level, Remote
from exlchat.remote.engine import RemoteEngine, connect
from exlchat.ui.tui.app import ChatApp
from tests.remote.peer import SERVED, llama_server, write_guide
from tests.ui.app_harness import say, services, told, until

pytestmark = pytest.mark.xdist_group("llama-server")
QUESTIONS = ("How do I load a model?", "What is EXL2?", "How do I stop an answer?")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(write_guide(tmp_path_factory.mktemp("gguf") / "guide.gguf")) as address:
        yield address


@pytest.fixture(scope="module")
def local() -> LocalEngine:
    return load(bundled_model(), device="cpu", kv_cache="fp32")


def remote(url: str, level: Level | None = None) -> RemoteEngine:
    return connect(Remote("peer", Address.parse(url), level=level))


def finished(engine: RemoteEngine | LocalEngine, ids: list[int], most: int = 60, **more: object) -> Finished:
    request = GenerationRequest(ids, max_new_tokens=most, **more)  # type: ignore[arg-type]
    *_, last = engine.generate(request)
    assert isinstance(last, Finished)
    return last


def asked(engine: RemoteEngine | LocalEngine, *texts: str) -> list[int]:
    form, notice = choose_format(engine.info, None)
    assert notice is None
    return prompt_ids(engine, [PromptMessage("user", text) for text in texts], form)


def test_it_is_found_out_what_answers(url: str, local: LocalEngine) -> None:
    engine = remote(url)
    assert (engine.server.kind, engine.server.level) == ("llama.cpp", "ids")
    assert engine.info.max_seq_len == SERVED
    assert engine.info.vocab_size == local.info.vocab_size
    assert engine.info.chat_template == local.info.chat_template
    assert engine.info.remote == "llama.cpp · ids"


@pytest.mark.parametrize("text", ["How do I load a model?", "a<|im_end|>b", "Grüße, 日本", "  two  spaces\n\n"])
def test_ids_and_texts_are_those_of_the_same_tokenizer_here(url: str, local: LocalEngine, text: str) -> None:
    engine = remote(url)
    for special in (True, False):
        ids = engine.encode(text, special=special)
        assert ids == local.encode(text, special=special)
        for shown in (True, False):
            assert engine.decode(ids, special=shown) == local.decode(ids, special=shown)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_likeliest_answer_is_the_one_of_our_engine_token_by_token(
    url: str, local: LocalEngine, question: str
) -> None:
    ids = asked(local, question)
    assert asked(remote(url), question) == ids
    here, there = finished(local, ids), finished(remote(url), ids)
    assert (there.text, there.token_ids, there.reason) == (here.text, here.token_ids, here.reason)
    assert there.stats.prompt_tokens == len(ids)


@pytest.mark.parametrize("level", ["text", "messages"])
def test_text_and_messages_give_the_same_text_and_no_ids(url: str, local: LocalEngine, level: Level) -> None:
    engine = remote(url, level)
    there = finished(engine, asked(engine, QUESTIONS[0]))
    assert there.text == finished(local, asked(local, QUESTIONS[0])).text
    assert there.token_ids == ()


def test_the_events_together_are_the_answer(url: str) -> None:
    engine = remote(url)
    events = list(engine.generate(GenerationRequest(asked(engine, QUESTIONS[0]), max_new_tokens=30)))
    deltas = [event for event in events if isinstance(event, TextDelta)]
    last = events[-1]
    assert isinstance(last, Finished)
    assert "".join(delta.text for delta in deltas) == last.text
    assert sum((delta.token_ids for delta in deltas), ()) == last.token_ids
    assert any(isinstance(event, PrefillProgress) and event.done == event.total for event in events)


def test_a_second_turn_reads_what_is_new_by_the_servers_own_count(url: str) -> None:
    engine, store = remote(url), ConversationStore(None)
    ident = store.create_conversation().id

    def turn(text: str) -> AnswerClosed:
        store.add_message(ident, "user", text)
        *_, closed = answer(store, engine, ident, TurnOptions(GREEDY, max_new_tokens=40))
        assert isinstance(closed, AnswerClosed)
        return closed

    first, second = turn("How do I rename a conversation?"), turn("And how do I delete one?")
    assert first.finished is not None
    assert second.finished is not None
    known = first.finished.stats.prompt_tokens + len(first.message.token_ids)
    # Of what it holds it computes the last token again.
    assert known - 2 <= second.finished.stats.cached_tokens <= known


def test_a_cut_answer_goes_on_where_it_was_cut(url: str) -> None:
    engine = remote(url)
    ids = asked(engine, QUESTIONS[0])
    whole, half = finished(engine, ids, 40), finished(engine, ids, 20)
    rest = finished(engine, [*ids, *half.token_ids], 20, begun=20)
    assert half.text + rest.text == whole.text


def test_a_stop_string_ends_it_and_is_not_shown(url: str) -> None:
    engine = remote(url)
    ids = asked(engine, QUESTIONS[0])
    whole = finished(engine, ids, 40)
    word = whole.text.split()[4]
    cut = finished(engine, ids, 40, stop=(word,))
    assert cut.reason == "stop_string"
    assert cut.text == whole.text[: whole.text.index(word)]


def test_a_cancel_ends_it_at_once(url: str) -> None:
    engine = remote(url)
    running = engine.generate(GenerationRequest(asked(engine, QUESTIONS[0]), SamplingSettings(temperature=2.0)))
    shown = []
    for event in running:
        shown.append(event)
        if isinstance(event, TextDelta):
            running.cancel()
    assert isinstance(shown[-1], Finished)
    assert shown[-1].reason == "cancelled"
    assert shown[-1].text == "".join(one.text for one in shown if isinstance(one, TextDelta))


def test_likely_tokens_are_told_with_their_ids(url: str, local: LocalEngine) -> None:
    ids = asked(local, QUESTIONS[0])
    here, there = (finished(engine, ids, 5, alternatives=3) for engine in (local, remote(url)))
    assert [one.taken.token_id for one in there.chances if one.taken] == list(there.token_ids)
    for ours, theirs in zip(here.chances, there.chances, strict=True):
        assert [one.token_id for one in theirs.top] == [one.token_id for one in ours.top]
        for a, b in zip(ours.top, theirs.top, strict=True):
            assert b.log_probability == pytest.approx(a.log_probability, abs=0.02)


def test_an_answer_is_held_to_a_schema(url: str) -> None:
    engine = remote(url)
    schema = json.dumps(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    )
    said = finished(engine, asked(engine, "A number"), 60, constraint=Constraint("json_schema", schema))
    assert isinstance(json.loads(said.text)["n"], int)
    choice = finished(engine, asked(engine, "Yes?"), 20, constraint=Constraint("choice", 'yes\nno "sir"'))
    assert choice.text in ("yes", 'no "sir"')


@pytest.mark.parametrize("name", ["<|im_end|>", 3])
def test_a_banned_token_never_comes_also_where_its_text_is_a_mark(
    url: str, local: LocalEngine, name: str | int
) -> None:
    ids = asked(local, QUESTIONS[1])
    banned = SamplingSettings(temperature=0.0, banned_tokens=(name,))
    assert finished(remote(url), ids, 90).reason == "stop_token"
    here, there = (finished(engine, ids, 90, sampling=banned) for engine in (local, remote(url)))
    assert (there.text, there.reason) == (here.text, "max_new_tokens")


@pytest.mark.parametrize(
    ("level", "sampling", "says"),
    [
        (None, SamplingSettings(banned_tokens=("quantized models",)), "it must be one"),
        (None, SamplingSettings(logit_bias=(("<|im_end|>x", -5.0),)), "logit_bias: '<|im_end|>x' is 2 tokens"),
        ("text", SamplingSettings(banned_tokens=("<|im_end|>",)), "no bias of tokens by their text; name their ids"),
        ("messages", SamplingSettings(logit_bias=((" the", 2.0),)), "no bias of tokens by their text; name their ids"),
    ],
)
def test_a_text_that_is_no_token_is_refused(
    url: str, level: Level | None, sampling: SamplingSettings, says: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        remote(url, level).check(GenerationRequest((), sampling))


@pytest.mark.parametrize(
    ("level", "refused"),
    [
        ("ids", {"/regex a+": "cannot hold an answer to a regex", "/cache": "does not tell what it keeps"}),
        ("text", {"/logprobs 3": "asked by text, tells no probabilities of tokens; leave out --remote-level"}),
        (
            "messages",
            {"/template chatml": "takes messages and has the prompt format itself", "/negative x": "lean away"},
        ),
    ],
)
async def test_the_chat_says_why_a_command_cannot_be_at_each_level(
    url: str, level: Level, refused: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    chat = ChatApp(services(tmp_path, load=lambda _: remote(url, level)))
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        before = chat.session.generation
        for typed, reason in refused.items():
            await say(pilot, typed)
            await until(pilot, lambda reason=reason: reason in told(chat))
        assert (chat.session.generation, chat.session.template) == (before, None)
        # By ids there are probabilities, and by them alone.
        await say(pilot, "/logprobs 3")
        await until(pilot, lambda: ("tells no probabilities" in told(chat)) == (level != "ids"))
        assert chat.session.generation.value("logprobs") == (3 if level == "ids" else 0)


def test_several_answers_are_several_requests(url: str) -> None:
    engine = remote(url)
    request = GenerationRequest(asked(engine, QUESTIONS[0]), SamplingSettings(temperature=1.5), max_new_tokens=12)
    events = list(engine.generate_several(request, [1, 2, 3]))
    ends = {one.index: one.event for one in events if isinstance(one, OneOfSeveral) and isinstance(one.event, Finished)}
    assert sorted(ends) == [0, 1, 2]
    assert len({one.text for one in ends.values()}) == 3
    assert [ends[index].stats.seed for index in range(3)] == [1, 2, 3]


def test_the_same_seed_gives_the_same_answer(url: str) -> None:
    engine = remote(url)
    hot = SamplingSettings(temperature=1.3, top_k=30, min_p=0.02, repetition_penalty=1.1)
    one, two = (finished(engine, asked(engine, QUESTIONS[1]), 20, sampling=hot, seed=7) for _ in range(2))
    assert one.text == two.text


@pytest.mark.parametrize(("name", "value"), [("top_a", 0.2), ("smoothing_factor", 0.3), ("tfs", 0.9)])
def test_what_it_does_not_know_is_refused_by_name(url: str, name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        remote(url).check(GenerationRequest((), SamplingSettings(**{name: value})))


def test_ask_answers_over_it_without_torch(url: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom exlchat.cli.main import main\n"
        f"code = main(['ask', '--remote', {url!r}, '--temperature', '0', '--max-tokens', '20', 'What is EXL2?'])\n"
        "assert 'torch' not in sys.modules\nsys.exit(code)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={"EXLCHAT_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.DEVNULL,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "EXL2" in run.stdout

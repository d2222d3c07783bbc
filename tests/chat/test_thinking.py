"""Thoughts and answers told apart, and thoughts left out of later prompts."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids, prompt_messages, prompt_text
from exlchat.chat.prompt.thinking import (
    GRANITE,
    HARMONY,
    KNOWN,
    MAGISTRAL,
    SEED,
    THINK,
    SplitAnswer,
    detect,
    opens_thinking,
    split,
    split_stored,
    unpack_marks,
)
from exlchat.chat.prompt_format import BUILT_IN, PromptFormat, choose_format, with_thinking
from exlchat.llm.events import TextDelta
from exlchat.llm.sampling import GREEDY
from exlchat.llm.thought_splitter import ThinkingMarks, ThoughtSplitter
from tests.chat import families, templates
from tests.chat.scripted_engine import ScriptedEngine, byte_level_tokenizer

OPENED = replace(THINK, opened=True)
PREFIXES = ThinkingMarks("<t", "</t>", ("<t>", "<"))
MARKS = [*KNOWN, OPENED, replace(HARMONY, opened=True), PREFIXES]


@pytest.mark.parametrize(
    ("text", "marks", "thinking", "answer"),
    [
        ("<think>\nwell\n</think>\n\nHi! ", THINK, "well", "Hi! "),
        ("  <think>well</think>Hi", THINK, "well", "Hi"),
        ("<think>\n\n</think>\n\nHi", THINK, None, "Hi"),
        ("<think>one</think>\n<think>two</think>Hi", THINK, "onetwo", "Hi"),
        ("<think>a </th b", THINK, "a </th b", ""),
        ("<think>well", THINK, "well", ""),
        (" Hi <think>no</think>", THINK, None, " Hi <think>no</think>"),
        ("<thin", THINK, None, "<thin"),
        ("\n", THINK, None, "\n"),
        ("", THINK, None, ""),
        ("well\n</think>\n\nHi", OPENED, "well", "Hi"),
        ("well", OPENED, "well", ""),
        ("\n</think>Hi", OPENED, None, "Hi"),
        ("<seed:think>a</seed:think>b", SEED, "a", "b"),
        ("[THINK]a[/THINK]b", MAGISTRAL, "a", "b"),
        ("Here is my thought process:\na\n\nHere is my response:\nb", GRANITE, "a", "b"),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            HARMONY,
            "a",
            "b",
        ),
        ("<|channel|>final<|message|>b", HARMONY, None, "b"),
    ],
)
def test_thoughts_and_answer(text: str, marks: ThinkingMarks, thinking: str | None, answer: str) -> None:
    found = split(text, marks)
    assert (found.thinking, found.answer) == (thinking, answer)
    assert text[found.start :] == answer


TEXTS = st.lists(
    st.sampled_from([*{part for one in MARKS for part in (one.opening, one.closing, *one.heads)}, *"<t>/ \nax|", "</"]),
    max_size=9,
).map("".join)


def shown(pieces: list[TextDelta]) -> list[TextDelta]:
    return [piece for piece in pieces if piece.channel != "mark"]


@given(text=TEXTS, marks=st.sampled_from(MARKS), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_how_the_text_is_cut_changes_nothing(text: str, marks: ThinkingMarks, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    splitter = ThoughtSplitter(marks)
    pieces = []
    for begin, end in pairwise(places):
        pieces += splitter.feed(text[begin:end])
    pieces += splitter.finish()
    one = ThoughtSplitter(marks)
    alone = [piece for character in text for piece in one.feed(character)] + one.finish()
    whole = split(text, marks)
    begun = ThoughtSplitter(marks, text[: places[-1] // 2])
    behind = [*begun.feed(text[places[-1] // 2 :]), *begun.finish()]
    assert "".join(piece.text for piece in behind) == text[places[-1] // 2 :]
    assert begun.thinking == one.thinking
    assert "".join(piece.text for piece in pieces) == "".join(piece.text for piece in alone) == text
    for found in (shown(pieces), shown(alone)):
        assert "".join(piece.text for piece in found if piece.channel == "thought") == (whole.thinking or "")
        assert "".join(piece.text for piece in found if piece.channel == "answer") == whole.answer
        kinds = [piece.channel for piece in found]
        assert kinds == sorted(kinds, reverse=True), "all thoughts come before the answer"
        assert all(piece.text for piece in found)


def test_text_comes_as_soon_as_it_is_certain() -> None:
    splitter = ThoughtSplitter(THINK)
    assert splitter.feed("<thi") == []
    assert [piece.text for piece in shown(splitter.feed("nk> we"))] == ["we"]
    assert splitter.thinking
    assert [piece.text for piece in shown(splitter.feed("ll, "))] == ["ll,"]
    assert [piece.text for piece in shown(splitter.feed("well </"))] == [" well"]
    assert shown(splitter.feed("think>\n")) == []
    assert not splitter.thinking
    assert [piece.channel for piece in shown(splitter.feed("Hi"))] == ["answer"]


def test_a_long_answer_costs_no_more_than_its_length() -> None:
    splitter = ThoughtSplitter(THINK)
    splitter.feed("<think>")
    for _ in range(20_000):
        splitter.feed("word \n")
    assert splitter.feed("</think>Hi")[-1].text == "Hi"


def test_stored_answers_of_unknown_origin_are_told_apart_by_what_they_say() -> None:
    assert split_stored("a</think>b", None, THINK) == SplitAnswer("a", "b", 9)
    assert split_stored("a", None, OPENED) == SplitAnswer(None, "a", 0)
    assert split_stored("a", OPENED, None) == SplitAnswer("a", "", 1)
    assert split_stored("<think>a</think>b", None, None).thinking is None


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("qwen-3", THINK),
        ("deepseek-r1", THINK),
        ("deepseek-v3.1", THINK),
        ("glm-4.5", THINK),
        ("smollm-3", THINK),
        ("exaone-4", THINK),
        ("nemotron", THINK),
        ("seed-oss", SEED),
        ("gpt-oss", HARMONY),
        ("granite-3", GRANITE),
        ("llama-3", None),
        ("phi-3", None),
        ("gemma-3", None),
        ("chatml", None),
    ],
)
def test_a_template_tells_how_thoughts_are_marked(name: str, marks: ThinkingMarks | None) -> None:
    source = templates.CHATML if name == "chatml" else families.source(name)
    assert detect(source) == marks
    assert detect(templates.CHATML, ("<think>", "</think>")) == THINK
    engine = ScriptedEngine(chat_template=source)
    form, _ = choose_format(engine.info, None)
    assert form.thinking == marks
    assert form.keeps_thinking == (name == "seed-oss"), "its template shows earlier thoughts that are given apart"


def test_whether_a_prompt_opens_thoughts_is_seen_at_its_end() -> None:
    asked = [{"role": "user", "content": "x"}]
    assert opens_thinking(BUILT_IN["deepseek-r1"].render(asked), THINK)
    assert not opens_thinking(BUILT_IN["qwen-3"].render(asked), THINK)
    assert opens_thinking("<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>", SEED)
    assert not opens_thinking(BUILT_IN["qwen-3"].render(asked, enable_thinking=False), THINK)


def test_marks_survive_their_record() -> None:
    for marks in MARKS:
        assert unpack_marks(asdict(marks)) == marks
    for broken in (None, {}, {"opening": ""}, {"opening": 1, "closing": 2}, "x"):
        assert unpack_marks(broken) is None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        ThinkingMarks(" ", "x")


# Later prompts


THOUGHT = {
    "qwen-3": "<think>\nwell, well\n</think>\n\nHello there",
    "chatml": "<think>well</think>Hello there ",
    "deepseek-r1": "well, well\n</think>\n\nHello there",
    "glm-4.5": "\n<think>well</think>\nHello there",
    "smollm-3": "<think>\nwell\n</think>\nHello there",
    "gpt-oss": "<|channel|>analysis<|message|>well<|end|><|start|>assistant<|channel|>final<|message|>Hello there",
}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(byte_level_tokenizer())


def answered(engine: ScriptedEngine, said: str, marks: ThinkingMarks | None) -> PromptMessage:
    ids = engine.spelled(said)
    return PromptMessage("assistant", engine.decode(ids), tuple(ids), marks)


@pytest.mark.parametrize("name", THOUGHT)
def test_thoughts_are_left_out_and_later_prompts_begin_with_earlier_ones(name: str, engine: ScriptedEngine) -> None:
    form = BUILT_IN[name]
    assert form.thinking is not None
    marks = replace(form.thinking, opened=name == "deepseek-r1")
    messages = [PromptMessage("user", "Who jumps?")]
    before: list[int] = []
    for number in range(4):
        asked = prompt_ids(engine, messages, form)
        assert asked[: len(before)] == before
        assert "well" not in engine.decode(asked)
        # The last token may grow with what follows; what asks for the answer differs from what stands before it later.
        before = prompt_ids(engine, messages, form, add_generation_prompt=False)[:-1]
        messages += [answered(engine, THOUGHT[name], marks), PromptMessage("user", f"And {number}?")]
    own = engine.spelled("Hello there")
    text = "".join(map(chr, prompt_ids(engine, messages, form)))
    assert text.count("".join(map(chr, own))) == 4, "the answers are represented by their own ids"
    plain = [PromptMessage(one.role, "Hello there" if one.role == "assistant" else one.text) for one in messages]
    assert prompt_text(engine, messages, form) == prompt_text(engine, plain, form) or name == "chatml"


def test_a_format_that_keeps_thoughts_goes_on_with_all_ids(engine: ScriptedEngine) -> None:
    form = replace(BUILT_IN["qwen-3"], source=templates.CHATML, keeps_thinking=True)
    first = [PromptMessage("user", "Hi")]
    said = answered(engine, THOUGHT["qwen-3"], THINK)
    known = [*prompt_ids(engine, first, form), *said.token_ids]
    later = prompt_ids(engine, [*first, said, PromptMessage("user", "More")], form)
    assert later[: len(known)] == known
    opened = answered(engine, THOUGHT["deepseek-r1"], OPENED)
    assert "<think>\nwell, well\n</think>" in prompt_text(engine, [*first, opened], form)


def test_an_answer_that_only_talks_about_marks_stays_whole(engine: ScriptedEngine) -> None:
    said = "Write <think> and </think> around it."
    messages = [PromptMessage("user", "Hi"), answered(engine, said, THINK), PromptMessage("user", "More")]
    assert said in prompt_text(engine, messages, PromptFormat("x", templates.CHATML, thinking=THINK))


def test_the_record_of_an_answer_says_how_its_thoughts_are_marked() -> None:
    record = AnswerRecord("m", "deepseek-r1", GREEDY, None, None, thinking=OPENED)
    cut = Message("a", None, "assistant", "only thoughts", 0.0, "partial", (1, 2), record)
    shown = prompt_messages([Message("q", None, "user", "Hi", 0.0), cut])
    engine = ScriptedEngine(byte_level_tokenizer())
    assert "only thoughts" not in prompt_text(engine, shown, BUILT_IN["chatml"])


@pytest.mark.parametrize(
    "name", ["qwen-3", "glm-4.5", "smollm-3", "exaone-4", "deepseek-v3.1", "granite-3", "seed-oss"]
)
def test_thinking_is_turned_on_and_off_by_the_familys_own_variable(name: str) -> None:
    asked = [{"role": "user", "content": "x"}]
    form = PromptFormat(name, families.source(name))
    on, off = (with_thinking(form, wanted).render(asked) for wanted in (True, False))
    assert on != off
    given = families.VARIABLES[name]
    if name not in ("granite-3", "seed-oss"):
        assert (on, off) == tuple(replace(form, variables=one).render(asked) for one in given[:2])
    elif name == "granite-3":
        assert on == replace(form, variables=given[0]).render(asked)
    else:
        assert off == replace(form, variables=given[0]).render(asked)

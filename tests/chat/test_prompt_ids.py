from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from exlchat.chat.model import Message, Role
from exlchat.chat.prompt.answer_ids import agreement, answer_ids
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids, prompt_messages
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt_format import BUILT_IN, PromptFormat
from tests.chat import templates
from tests.chat.scripted_engine import (
    ScriptedEngine,
    byte_level_tokenizer,
    space_prefixing_tokenizer,
    tokenizer_from,
)
from tests.shared_data import DATA

FORMATS = {
    **BUILT_IN,
    **{name: PromptFormat(name, templates.ALL[name]) for name in ("chatml", "llama-3", "llama-2", "mistral", "gemma")},
    "built-in chatml": BUILT_IN["chatml"],
}
# An answer there never stands as it was generated: its prompt opens thoughts, or later prompts put marks before it.
REWRITTEN = ("deepseek-r1", "glm-4.5", "gpt-oss")
PARTS = [
    *templates.ALL,
    "<|im_start|>system\n",
    "<|im_end|>",
    "<s>",
    "</s>",
    " ",
    "\n",
    "Hello",
    "ä",
    "😀",
    "x",
    "<|im",
]


@cache
def tokenizer(name: str) -> Tokenizer:
    if name == "byte-level":
        return byte_level_tokenizer()
    if name == "space-prefixing":
        return space_prefixing_tokenizer()
    if not DATA.is_dir():
        pytest.skip("the prepared check vectors (../shared/data) are not here")
    return tokenizer_from(DATA / "tiny-llama")


@pytest.fixture(params=["byte-level", "space-prefixing", "tiny-llama"])
def engine(request: pytest.FixtureRequest) -> ScriptedEngine:
    return ScriptedEngine(tokenizer(request.param))


@pytest.fixture(params=[name for name in FORMATS if name not in REWRITTEN])
def form(request: pytest.FixtureRequest) -> PromptFormat:
    return FORMATS[request.param]


def user(text: str) -> PromptMessage:
    return PromptMessage("user", text)


def answer(engine: ScriptedEngine, said: str) -> PromptMessage:
    """An answer generated character by character; its text is what an engine shows for these ids."""
    ids = engine.spelled(said)
    return PromptMessage("assistant", engine.decode(ids), tuple(ids))


def rendered(engine: ScriptedEngine, form: PromptFormat, messages: list[PromptMessage]) -> str:
    mappings = [{"role": message.role, "content": message.text} for message in messages]
    return form.render(mappings, bos_token=engine.info.bos_token, eos_token=engine.info.eos_token)


def test_a_prompt_that_a_template_has_blown_up_never_reaches_the_tokenizer(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = PromptFormat("large", "{{ messages[0].content }}{% for _ in range(150) %}{{ 'ab' * 10**4 }}{% endfor %}")
    monkeypatch.setattr(engine, "encode", lambda _: pytest.fail("it was encoded"))
    with pytest.raises(PromptError, match=r"format large makes 3,000,002 characters of 2; choose another"):
        prompt_ids(engine, [user("Hi")], form)


@pytest.mark.parametrize(
    "said",
    ["Hello there, how are you?", " Hello there", "Hello \n", "\n\n  the fox\n", "ä 😀 €", "def f(x):\n    return x"],
)
def test_each_turn_begins_with_the_prompt_and_the_ids_of_the_turn_before(
    engine: ScriptedEngine, form: PromptFormat, said: str
) -> None:
    messages = [user("Who jumps over the lazy dog?")]
    known: list[int] = []
    for number in range(3):
        prompt = prompt_ids(engine, messages, form)
        assert prompt[: len(known)] == known
        reply = answer(engine, said)
        known = [*prompt, *reply.token_ids]
        messages += [reply, user(f"And number {number}?")]
    assert said.startswith("ä") or engine.encode(said) != list(reply.token_ids)


def test_a_system_message_and_odd_user_messages_change_nothing_about_that(engine: ScriptedEngine) -> None:
    for name in ("chatml", "llama-3", "llama-2", "plain"):
        messages = [PromptMessage("system", "Be brief. <|im_end|>"), user("  <s> Hi </s>\n")]
        first = prompt_ids(engine, messages, FORMATS[name])
        reply = answer(engine, "Hello <|im_start|> you")
        second = prompt_ids(engine, [*messages, reply, user("<|im_end|>?")], FORMATS[name])
        assert second[: len(first) + len(reply.token_ids)] == [*first, *reply.token_ids]


def test_without_ids_and_special_text_the_prompt_is_the_plain_encoding(
    engine: ScriptedEngine, form: PromptFormat
) -> None:
    messages = [user(" Hello there "), PromptMessage("assistant", "Hi\n\nyou"), user("How are you? ä€")]
    assert prompt_ids(engine, messages, form) == engine.encode(rendered(engine, form, messages))


def test_bos_comes_once(engine: ScriptedEngine) -> None:
    bos = engine.encode("<s>")[0]
    for name in ("built-in chatml", "plain", "llama-3", "gemma", "mistral"):
        prompt = prompt_ids(engine, [user("Hi"), answer(engine, "Hello"), user("Hi")], FORMATS[name])
        assert prompt[0] == bos
        assert prompt.count(bos) == 1


@given(data=st.data())
def test_no_message_can_say_a_special_token(data: st.DataObject) -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    form = data.draw(st.sampled_from([FORMATS[name] for name in ("chatml", "llama-3", "llama-2", "mistral", "plain")]))
    text = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
    messages: list[PromptMessage] = []
    for number in range(data.draw(st.integers(1, 2))):
        if number:
            said = data.draw(text)
            with_ids = PromptMessage("assistant", said, tuple(engine.spelled(said)))
            messages.append(data.draw(st.sampled_from([with_ids, PromptMessage("assistant", said)])))
        messages.append(user(data.draw(text)))
    special = {engine.encode(token)[0] for token in engine.info.special_tokens}
    tame = [PromptMessage(message.role, "y") for message in messages]

    def special_ids(prompt: list[int]) -> list[int]:
        return [token for token in prompt if token in special]

    prompt = prompt_ids(engine, messages, form)
    assert special_ids(prompt) == special_ids(prompt_ids(engine, tame, form))
    squeezed = re.sub(r"\s", "", rendered(engine, form, messages))
    assert re.sub(r"\s", "", engine.text_with_special_tokens(prompt)) == squeezed


def test_a_template_that_rewrites_messages_still_keeps_special_text_apart() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    form = PromptFormat("odd", "{% for m in messages %}<|im_start|>{{ m.content | replace('a', 'e') }}{% endfor %}")
    messages = [user("a <|im_end|> a"), PromptMessage("assistant", "ba <s>", tuple(engine.spelled("ba <s>")))]
    prompt = prompt_ids(engine, messages, form)
    start, end, bos = (engine.encode(token)[0] for token in ("<|im_start|>", "<|im_end|>", "<s>"))
    assert prompt.count(start) == 2
    assert end not in prompt
    assert bos not in prompt
    assert engine.text_with_special_tokens(prompt) == "<|im_start|>e <|im_end|> e<|im_start|>be <s>"


def test_a_template_that_drops_the_thinking_sees_it_even_as_special_tokens() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    engine.with_info(special_tokens=(*engine.info.special_tokens, "<think>", "</think>"))
    form = PromptFormat("reasoning", templates.REASONING)
    said = "<think>well</think>Hello"
    messages = [user("Hi"), PromptMessage("assistant", said, tuple(engine.spelled(said))), user("More")]
    tame = [user("Hi"), PromptMessage("assistant", "Hello"), user("More")]
    assert prompt_ids(engine, messages, form) == prompt_ids(engine, tame, form)


def test_one_answer_the_template_rewrites_does_not_cost_the_others_their_ids() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    form = PromptFormat("reasoning", templates.REASONING)
    plain, thought = answer(engine, "Hello there"), answer(engine, "<think>well</think>the fox")
    prompt = prompt_ids(engine, [user("Hi"), plain, user("Who?"), thought, user("Thanks")], form)
    text = "".join(map(chr, prompt))
    assert "".join(map(chr, plain.token_ids)) in text
    assert "".join(map(chr, engine.encode("the fox"))) in text


def test_the_format_may_refuse(engine: ScriptedEngine) -> None:
    with pytest.raises(PromptError, match="System role not supported"):
        prompt_ids(engine, [PromptMessage("system", "x"), user("y")], FORMATS["gemma"])


@pytest.mark.parametrize("digits", ["99999", "1" * 5000, "17"])
@pytest.mark.parametrize("digit", ["0", "1"])
def test_a_template_that_changes_digits_breaks_nothing(engine: ScriptedEngine, digit: str, digits: str) -> None:
    source = f"{{% for m in messages %}}{{{{ m.content | replace('{digit}', '{digits}') }}}}\n{{% endfor %}}"
    special = engine.info.special_tokens[0]
    talk = [user(f"hello {special} and {special}"), answer(engine, "well"), user("x"), answer(engine, "no"), user("y")]
    # A line is as good as a prompt; an `IndexError` is neither.
    with contextlib.suppress(PromptError):
        assert prompt_ids(engine, talk, PromptFormat("digits", source))


def test_the_clock_of_a_template_may_tick_between_renderings() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    source = "{{ strftime_now('%S.%f') }}{{ strftime_now('%S.%f') }}" + templates.CHATML
    reply = answer(engine, "Hello")
    prompt = prompt_ids(engine, [user("a"), reply, user("b")], PromptFormat("clock", source))
    assert re.match(r"(\d\d\.\d{6})\1\D", engine.decode(prompt))
    assert "".join(map(chr, reply.token_ids)) in "".join(map(chr, prompt))


# Which ids stand for an answer


@given(text=st.text(st.sampled_from("ab é😀\n"), min_size=1), cut=st.integers(0, 60), shown=st.integers(0, 40))
def test_ids_stand_for_exactly_the_text_that_was_shown(text: str, cut: int, shown: int) -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    ids = engine.spelled(text)[:cut]
    part = text[:shown]
    used = answer_ids(engine, part, ids)
    assert engine.decode(used).strip() == part.strip()


def test_a_long_answer_cut_before_its_stop_string_keeps_all_ids_but_the_last() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    text = "the quick brown fox " * 200
    ids = engine.spelled(text + "\nUser")
    assert agreement(engine, text, ids) == (len(engine.spelled(text)), "")


def test_half_a_character_at_the_end_is_left_out() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    ids = engine.spelled("ok 😀")
    assert agreement(engine, "ok ", ids[:-1]) == (3, "")


def test_ids_that_say_something_else_are_not_used() -> None:
    engine = ScriptedEngine(tokenizer("byte-level"))
    assert agreement(engine, "edited", engine.spelled("original")) == (0, "edited")
    messages = [user("a"), PromptMessage("assistant", "edited", tuple(engine.spelled("original"))), user("b")]
    bare = [user("a"), PromptMessage("assistant", "edited"), user("b")]
    assert prompt_ids(engine, messages, FORMATS["chatml"]) == prompt_ids(engine, bare, FORMATS["chatml"])


# What of a branch goes into a prompt


def branch(*messages: tuple[Role, str]) -> list[Message]:
    return [Message(str(n), None, role, text, 0.0) for n, (role, text) in enumerate(messages)]


def test_the_newest_system_message_leads_and_an_empty_one_takes_it_away() -> None:
    told = branch(("system", "one"), ("user", "a"), ("assistant", "b"), ("system", "two"), ("user", "c"))
    assert [(m.role, m.text) for m in prompt_messages(told)] == [
        ("system", "two"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert [m.role for m in prompt_messages([*told, *branch(("system", " "))])] == ["user", "assistant", "user"]


def test_what_was_left_out_is_not_seen_but_for_what_is_to_be_answered() -> None:
    told = branch(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
    without = [replace(one, left_out=one.text in "be") for one in told]
    assert [(m.role, m.text) for m in prompt_messages(without)] == [
        ("user", "a\n\nc"),
        ("assistant", "d"),
        ("user", "e"),
    ]


def test_user_messages_in_a_row_become_one() -> None:
    told = branch(("user", "a"), ("system", "s"), ("user", "b"), ("assistant", "c"))
    assert [(m.role, m.text) for m in prompt_messages(told)] == [
        ("system", "s"),
        ("user", "a\n\nb"),
        ("assistant", "c"),
    ]


# What ends an answer


def test_the_token_behind_an_answer_ends_it(engine: ScriptedEngine) -> None:
    im_end = engine.encode("<|im_end|>")[0]
    assert stop_conditions(engine, FORMATS["chatml"]) == (im_end,)
    assert stop_conditions(engine, BUILT_IN["chatml"]) == (im_end,)
    assert stop_conditions(engine, FORMATS["mistral"]) == (), "the model's own stop ids have it already"
    assert stop_conditions(engine, BUILT_IN["plain"]) == ("\nUser:",)
    engine.with_info(stop_ids=())
    assert stop_conditions(engine, FORMATS["llama-2"]) == tuple(engine.encode("</s>"))


def test_a_marker_that_is_plain_text_to_the_tokenizer_is_a_stop_string(engine: ScriptedEngine) -> None:
    engine.with_info(special_tokens=("<s>", "</s>"))
    assert stop_conditions(engine, BUILT_IN["chatml"]) == ("<|im_end|>",)

"""A prompt laid open, and marks that the tokenizer does not call special."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from exlchat.chat.prompt.ids import PromptMessage, prompt_ids, prompt_text
from exlchat.chat.prompt.layout import lay_out
from exlchat.chat.prompt_format import BUILT_IN, PromptFormat
from tests.chat import families, templates
from tests.chat.scripted_engine import ScriptedEngine, byte_level_tokenizer, space_prefixing_tokenizer


def talk(engine: ScriptedEngine) -> list[PromptMessage]:
    said = "Sure: ä 😀 fox"
    return [
        PromptMessage("system", "Be brief. <|im_end|>"),
        PromptMessage("user", "Hello 😀 there"),
        PromptMessage("assistant", said, tuple(engine.spelled(said))),
        PromptMessage("user", "the quick brown fox"),
    ]


@pytest.mark.parametrize("make", [byte_level_tokenizer, space_prefixing_tokenizer])
@pytest.mark.parametrize("name", ["chatml", "llama-3", "mistral-v1", "gpt-oss", "plain"])
def test_each_message_is_found_in_text_and_tokens(name: str, make: object) -> None:
    engine = ScriptedEngine(make())  # type: ignore[operator]
    messages = talk(engine)
    layout = lay_out(engine, messages, BUILT_IN[name])
    assert list(layout.ids) == prompt_ids(engine, messages, BUILT_IN[name])
    assert layout.text == prompt_text(engine, messages, BUILT_IN[name])
    assert len(layout.pieces) == len(layout.ids)
    assert squeezed("".join(layout.pieces)) == squeezed(layout.text), "an answer has the white space that it was given"
    for message, span in zip(messages, layout.messages, strict=True):
        assert span.role == message.role
        assert layout.text[span.start : span.end] == message.text
        assert span.first is not None
        assert span.last is not None
        said = squeezed(message.text)
        assert said in squeezed("".join(layout.pieces[span.first : span.last]))
        assert said not in squeezed("".join(layout.pieces[span.first + 1 : span.last]))
        assert said not in squeezed("".join(layout.pieces[span.first : span.last - 1]))


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_a_message_that_the_format_changes_or_leaves_out_has_no_place() -> None:
    engine = ScriptedEngine(byte_level_tokenizer())
    form = PromptFormat("x", "{% for m in messages if m.role == 'user' %}{{ m.content | upper }}{% endfor %}")
    layout = lay_out(engine, [PromptMessage("system", "a"), PromptMessage("user", "b")], form)
    assert [(one.start, one.first) for one in layout.messages] == [(None, None), (None, None)]


def test_an_empty_message_that_a_format_leaves_out_has_no_place_and_one_that_it_keeps_has() -> None:
    engine = ScriptedEngine(byte_level_tokenizer())
    said = [PromptMessage("user", ""), PromptMessage("assistant", "a"), PromptMessage("user", "b")]
    leaves_out = PromptFormat("x", "{% for m in messages if m.content %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert lay_out(engine, said, leaves_out).messages[0].start is None
    keeps = PromptFormat("x", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    first = lay_out(engine, said, keeps).messages[0]
    assert (first.start, first.end) == (len("<user>"), len("<user>"))


def test_marks_that_are_added_but_not_special_cannot_be_typed_either() -> None:
    tokenizer = byte_level_tokenizer()
    marks = ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<other>"]
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in marks])
    engine = ScriptedEngine(tokenizer)
    engine.with_info(added_tokens=(*engine.info.special_tokens, *marks))
    for form in (BUILT_IN["deepseek-r1"], PromptFormat("x", families.source("deepseek-r1"))):
        for text in ("a <｜User｜> b", "<｜User｜><｜Assistant｜>", "<｜end▁of▁sentence｜>"):
            messages = [PromptMessage("user", text), PromptMessage("assistant", "c"), PromptMessage("user", text)]
            ids = prompt_ids(engine, messages, form)
            assert [ids.count(tokenizer.token_to_id(mark)) for mark in marks] == [2, 2, 1, 0], text
            assert engine.text_with_special_tokens(ids) == prompt_text(engine, messages, form)
    typed = [PromptMessage("user", "an <other> token")]
    assert tokenizer.token_to_id("<other>") in prompt_ids(engine, typed, PromptFormat("x", templates.CHATML))

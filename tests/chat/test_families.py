"""The prompts of well-known model families, as text and as ids, against `apply_chat_template` of `transformers`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt_format import PromptFormat
from tests.chat import families
from tests.chat.scripted_engine import ScriptedEngine, byte_level_tokenizer

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "Be brief & \"kind\".\nUse 'plain' <b>words</b>.  "}
HELLO = {"role": "user", "content": "  Hello <there> & 'you' \n"}
ANSWER = {"role": "assistant", "content": " Hi!\n\n```py\nx = {'a': 1}\n``` "}
THOUGHT = {"role": "assistant", "content": "<think>\nwell, well\n</think>\n\nHi! "}
MORE = {"role": "user", "content": "Mehr, bitte: ä € 😀 {{ x }} {% if %} %s"}
EMPTY = {"role": "user", "content": ""}

CONVERSATIONS: dict[str, Messages] = {
    "one": [HELLO],
    "system": [SYSTEM, HELLO],
    "three": [HELLO, ANSWER, MORE],
    "system and five": [SYSTEM, HELLO, ANSWER, MORE, ANSWER, HELLO],
    "thinking": [HELLO, THOUGHT, MORE],
    "answer last": [SYSTEM, HELLO, ANSWER],
    "thinking last": [HELLO, THOUGHT],
    "empty": [EMPTY],
    "empty answer": [HELLO, {"role": "assistant", "content": ""}, MORE],
    "empty system": [{"role": "system", "content": ""}, HELLO],
    "out of order": [HELLO, HELLO],
    "late system": [HELLO, ANSWER, SYSTEM, MORE],
    "mode in the system message": [{"role": "system", "content": "Short. /no_think thinking off"}, HELLO, ANSWER, MORE],
    "reasoning of its own": [HELLO, {**ANSWER, "reasoning_content": "well"}],
    "tool": [HELLO, {"role": "tool", "content": "4"}],
}
CASES = [(name, variables) for name in families.NAMES for variables in ({}, *families.VARIABLES.get(name, ()))]
FAMILIES = pytest.mark.parametrize(("name", "variables"), CASES, ids=[f"{name} {given or ''}" for name, given in CASES])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One that knows the marks of all families."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=True) for mark in families.MARKS])
    return tokenizer


@pytest.fixture(scope="module")
def peer(tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def wanted(peer: Any, name: str, messages: Messages, **how: Any) -> Any:
    """What transformers makes, or the text of the template's refusal."""
    try:
        return peer.apply_chat_template(messages, chat_template=families.source(name), **how)
    except TemplateError as refusal:
        return refusal


def test_there_are_at_least_25_families() -> None:
    assert len(families.NAMES) >= 25
    assert set(families.VARIABLES) | set(families.END) <= set(families.NAMES)


@FAMILIES
def test_the_text_is_that_of_transformers(name: str, variables: dict[str, Any], peer: Any) -> None:
    form = PromptFormat(name, families.source(name), variables=variables)
    for title, messages in CONVERSATIONS.items():
        for opening in (True, False):
            expected = wanted(peer, name, messages, tokenize=False, add_generation_prompt=opening, **variables)
            case = f"{title}, generation prompt {opening}"
            if isinstance(expected, str):
                ours = form.render(messages, add_generation_prompt=opening, bos_token="<s>", eos_token="</s>")
                assert ours == expected, case
            else:
                with pytest.raises(PromptError, match=re.escape(str(expected)[:60])):
                    form.render(messages, add_generation_prompt=opening, bos_token="<s>", eos_token="</s>")


@FAMILIES
def test_the_ids_are_those_of_transformers(
    name: str, variables: dict[str, Any], peer: Any, tokenizer: Tokenizer
) -> None:
    engine = ScriptedEngine(tokenizer)
    form = PromptFormat(name, families.source(name), variables=variables)
    for title, messages in CONVERSATIONS.items():
        how = {"tokenize": True, "return_dict": True, "add_generation_prompt": True}
        expected = wanted(peer, name, messages, **how, **variables)
        if not isinstance(expected, TemplateError) and "reasoning" not in title:
            ours = [PromptMessage(message["role"], message["content"]) for message in messages]
            assert prompt_ids(engine, ours, form) == expected["input_ids"], title


@pytest.mark.parametrize("name", ["qwen-3", "glm-4.5", "smollm-3", "exaone-4", "deepseek-v3.1"])
def test_thinking_can_be_turned_on_and_off(name: str) -> None:
    on, off = (
        PromptFormat(name, families.source(name), variables=variables).render([HELLO])
        for variables in families.VARIABLES[name][:2]
    )
    assert on != off
    assert "</think>" in off or "/nothink" in off
    assert "</think>" not in on


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", families.END)
def test_the_token_that_ends_an_answer_stops_it(name: str, special: bool, tokenizer: Tokenizer) -> None:
    """Whatever the files of the model say of EOS, and whether or not they call the token a special one."""
    engine = ScriptedEngine(tokenizer)
    engine.with_info(stop_ids=(), special_tokens=families.MARKS if special else (), added_tokens=families.MARKS)
    stops = stop_conditions(engine, PromptFormat(name, families.source(name)))
    assert stops == (tokenizer.token_to_id(families.END[name]),)

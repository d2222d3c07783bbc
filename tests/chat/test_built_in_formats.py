"""Every built-in format against what transformers renders from the template of its family."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from exlchat.chat.prompt.formats import FORMATS, guess
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt_format import BUILT_IN, PromptFormat
from tests.chat import families, templates
from tests.chat.scripted_engine import ScriptedEngine, byte_level_tokenizer
from tests.chat.test_families import CONVERSATIONS

Messages = list[dict[str, Any]]

OURS = {"plain", "log"}
"""Formats of no family."""

SYSTEM = {"role": "system", "content": "Be brief <|im_end|>."}
MARKS = "Say <|im_end|><|eot_id|></s>[/INST]<end_of_turn><|end|><｜Assistant｜><|channel|>final<|message|> please"
TALKS: dict[str, Messages] = {
    **{title: talk for title, talk in CONVERSATIONS.items() if title not in ("tool", "mode in the system message")},
    "marks in messages": [SYSTEM, {"role": "user", "content": MARKS}, {"role": "assistant", "content": MARKS}],
    "answers in a row": [*CONVERSATIONS["three"][:2], *CONVERSATIONS["three"][1:]],
    "system after system": [SYSTEM, *CONVERSATIONS["system"]],
    "empty everything": [{"role": role, "content": ""} for role in ("system", "user", "assistant", "user")],
}
THINKS = {"qwen-3", "smollm-3", "glm-4.5"}
"""Those whose template can be told not to think."""


def family(name: str) -> str:
    """The template to compare with, with the texts that the test data shortened put back."""
    sources = {"chatml": "internlm-2", "gemma": "gemma-2", "mistral": "mistral-v3"}
    source = families.source(sources.get(name, name))
    for old, new in CHANGES.get(name, ()):
        assert old in source
        source = source.replace(old, new)
    return source


CHANGES: dict[str, list[tuple[str, str]]] = {
    "granite-3": [("You are Granite.", "You are Granite, developed by IBM. You are a helpful AI assistant.")],
    "smollm-3": [
        (old, "You are a helpful AI assistant named SmolLM, trained by Hugging Face.")
        for old in ("Think first.", "Answer at once.")
    ],
    "vicuna": [
        (
            '"A chat between a curious user and an artificial intelligence assistant. "',
            '"A chat between a curious user and an artificial intelligence assistant. '
            "The assistant gives helpful, detailed, and polite answers to the user's questions. \"",
        )
    ],
    # What a model says of itself, by name and version, is no part of a format.
    "mistral-tekken": [("{%- set system_message = default_system_message %}", "{%- set system_message = '' %}")],
    # The collection that it is from has it used without indentation and line breaks.
    "alpaca": [("    ", ""), ("\n", "")],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=True) for mark in families.MARKS])
    return tokenizer


@pytest.fixture(scope="module")
def peer(tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def expected_text(peer: Any, name: str, messages: Messages, opening: bool, **variables: Any) -> str | None:
    """`None` where the family's template refuses; ours goes on in its manner then."""
    try:
        text = str(
            peer.apply_chat_template(
                messages, chat_template=family(name), tokenize=False, add_generation_prompt=opening, **variables
            )
        )
    except TemplateError:
        return None
    return text.replace("[SYSTEM_PROMPT][/SYSTEM_PROMPT]", "") if name == "mistral-tekken" else text


FAMILY_FORMATS = sorted(set(BUILT_IN) - OURS)


@pytest.mark.parametrize("name", FAMILY_FORMATS)
def test_the_text_is_that_of_the_family(name: str, peer: Any) -> None:
    compared = 0
    for title, messages in TALKS.items():
        for opening in (True, False):
            for variables in ({}, {"enable_thinking": False}) if name in THINKS else ({},):
                wanted = expected_text(peer, name, messages, opening, **variables)
                ours = BUILT_IN[name].render(
                    messages, add_generation_prompt=opening, bos_token="<s>", eos_token="</s>", **variables
                )
                if wanted is not None:
                    if name == "mistral-tekken":
                        ours = ours.replace("[SYSTEM_PROMPT][/SYSTEM_PROMPT]", "")
                    assert ours == wanted, f"{title}, generation prompt {opening}, {variables}"
                    compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", FAMILY_FORMATS)
def test_the_ids_are_those_of_the_family_but_for_marks_in_messages(name: str, peer: Any, tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer)
    form = BUILT_IN[name]
    special = {tokenizer.token_to_id(token) for token in engine.info.special_tokens}
    for title, messages in TALKS.items():
        wanted = expected_text(peer, name, messages, True)
        # Thoughts are left out by us before the template sees them.
        if wanted is None or "thinking" in title or "reasoning" in title or name == "mistral-tekken":
            continue
        ids = prompt_ids(engine, [PromptMessage(one["role"], one["content"]) for one in messages], form)
        said = "".join(one["content"] for one in messages)
        if not any(token in said for token in engine.info.special_tokens):
            assert ids == tokenizer.encode(wanted, add_special_tokens=False).ids, title
        else:
            tame = [PromptMessage(one["role"], re.sub(r"[^\w\s]", "", one["content"])) for one in messages]
            count = [token for token in prompt_ids(engine, tame, form) if token in special]
            assert [token for token in ids if token in special] == count, title
            assert engine.text_with_special_tokens(ids) == wanted, title


def test_there_are_many_and_each_says_what_it_is() -> None:
    assert len(FORMATS) >= 25
    assert len(BUILT_IN) == len(FORMATS)
    for one in FORMATS:
        for line in (one.about, one.models):
            assert line
            assert line.isprintable()
            assert len(line) <= 110
        assert one.source.endswith("\n")


@pytest.mark.parametrize("name", sorted(set(families.END) & set(BUILT_IN)))
def test_what_ends_an_answer_of_the_family_is_known_without_the_models_files(name: str, tokenizer: Tokenizer) -> None:
    engine = ScriptedEngine(tokenizer)
    engine.with_info(stop_ids=(), added_tokens=families.MARKS)
    stops = stop_conditions(engine, BUILT_IN[name])
    end = tokenizer.token_to_id("</s>" if name == "deepseek-v2" else families.END[name])
    assert end in stops


def test_chatml_of_other_test_data_is_ours_too(peer: Any) -> None:
    for messages in TALKS.values():
        wanted = peer.apply_chat_template(
            messages, chat_template=templates.CHATML, tokenize=False, add_generation_prompt=True
        )
        assert BUILT_IN["chatml"].render(messages) == wanted


def test_names_stand_in_a_log() -> None:
    form = PromptFormat("log", BUILT_IN["log"].source, variables={"user_name": "Ann", "assistant_name": "Bob"})
    messages = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yo", "name": "Eve"}]
    assert form.render(messages) == "Ann: Hi\nEve: Yo\nBob:"


@pytest.mark.parametrize(
    ("tokens", "architecture", "vocab_size", "name"),
    [
        (("<|im_start|>", "<|im_end|>", "<think>", "</think>"), "Qwen3ForCausalLM", 151_936, "qwen-3"),
        (("<|im_start|>", "<|im_end|>"), "SmolLM3ForCausalLM", 128_256, "smollm-3"),
        (("<|im_start|>", "<|im_end|>", "<|im_sep|>"), "Phi3ForCausalLM", 100_352, "phi-4"),
        (("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"), "", 128_256, "llama-3.1"),
        (("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "", 131_072, "mistral-tekken"),
        (("<start_of_turn>", "<end_of_turn>"), "Gemma3ForCausalLM", 262_144, "gemma-3"),
        (("[gMASK]", "<sop>", "<|user|>", "<|assistant|>"), "Glm4ForCausalLM", 151_552, "glm-4"),
        (("[gMASK]", "<sop>", "<|user|>", "<think>"), "Glm4MoeForCausalLM", 151_552, "glm-4.5"),
        (("<｜User｜>", "<｜Assistant｜>"), "LlamaForCausalLM", 128_256, "deepseek-r1"),
        (("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), "GraniteForCausalLM", 49_155, "granite-3"),
        (("<|start|>", "<|channel|>", "<|message|>", "<|return|>"), "GptOssForCausalLM", 201_088, "gpt-oss"),
        (("[|user|]", "[|assistant|]", "[|endofturn|]"), "ExaoneForCausalLM", 102_400, "exaone-3.5"),
        ((), "Olmo2ForCausalLM", 100_352, "olmo-2"),
        (("<|im_start|>", "<|im_end|>"), "Olmo2ForCausalLM", 100_352, "olmo-2"),
        ((), "Olmo3", 5, "plain"),
    ],
)
def test_a_model_without_a_template_gets_that_of_its_family(
    tokens: tuple[str, ...], architecture: str, vocab_size: int, name: str
) -> None:
    assert guess(set(tokens), architecture, vocab_size)[0] == name

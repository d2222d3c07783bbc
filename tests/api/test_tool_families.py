"""Calls of functions as model families write them in their own chat templates, read again; and what no call is."""

from __future__ import annotations

import json

import pytest

from exlchat.api.tools.families import FAMILIES, PLAIN, Family, ToolCall, family_of
from exlchat.api.tools.offered import Tool
from exlchat.engine.grammar import check_constraint
from exlchat.llm.constraint import Constraint

WEATHER = Tool(
    "get_weather",
    "The weather of a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = Tool("clock", "The time")
TOOLS = (WEATHER, CLOCK)
FAMILY = {one.name: one for one in (*FAMILIES, PLAIN)}

SAID = {
    "Hermes, Qwen": (
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call><|im_end|>'
    ),
    "Llama 3": '{"name": "get_weather", "parameters": {"city": "Köln", "days": 2}}<|eot_id|>',
    "Mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}]</s>',
    "Mistral 3.1": '[TOOL_CALLS]get_weather[ARGS]{"city": "Köln", "days": 2}[TOOL_CALLS]clock[ARGS]{}</s>',
    "Command R7B": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Köln", "days": 2}}\n]<|END_ACTION|>'
    ),
    "DeepSeek V3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Köln", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "GLM 4.5": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    ),
    "Qwen3 Coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "gpt-oss": (
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Köln", "days": 2}<|call|>'
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Köln", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "Granite 3, Phi-4": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}]',
}


def test_every_family_is_here() -> None:
    assert set(SAID) == {one.name for one in FAMILIES}
    assert len(FAMILIES) >= 10


@pytest.mark.parametrize("name", SAID)
def test_a_call_is_read(name: str) -> None:
    before, calls = FAMILY[name].calls(SAID[name], TOOLS)
    assert before == ("Let me look." if name == "Hermes, Qwen" else "")
    assert calls[0].name == "get_weather"
    assert json.loads(calls[0].arguments) == {"city": "Köln", "days": 2}
    assert [one.name for one in calls[1:]] == (["clock"] if name in ("Hermes, Qwen", "Mistral 3.1") else [])


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize(
    "said", ["Hello.", "", "{", '{"name": "other", "arguments": {}}', "[TOOL_CALLS] [", "<tool_call>\n{"]
)
def test_what_is_none_stays_text(name: str, said: str) -> None:
    assert FAMILY[name].calls(said, TOOLS) == (said, [])


@pytest.mark.parametrize("name", SAID)
def test_half_a_call_or_one_of_another_function_is_none(name: str) -> None:
    said = SAID[name]
    assert FAMILY[name].calls(said, (CLOCK,))[1] in ([], [ToolCall("clock", "{}")])
    assert FAMILY[name].calls(said[: said.index("Köln") + 2], TOOLS)[1] == []


SOURCES = {
    "Hermes, Qwen": "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}<tool_call>",
    "Mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "Mistral 3.1": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]",
    "GLM 4.5": "{% if tools %}{% endif %}<tool_call>{{ name }}<arg_key>",
    "Llama 3": '{% if tools %}{"name": function name, "parameters": dictionary}{% endif %}ipython',
    "plain": "{% if tools %}{{ tools }}{% endif %}",
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_family_is_told_by_what_its_template_writes(name: str) -> None:
    family = family_of(SOURCES[name])
    assert family is not None
    assert family.name == name
    assert family_of("{% for message in messages %}{{ message.content }}{% endfor %}") is None


@pytest.mark.parametrize("family", [one for one in (*FAMILIES, PLAIN) if one.body != "own"], ids=lambda one: one.name)
@pytest.mark.parametrize("parallel", [False, True])
def test_a_grammar_is_one_that_answers_can_be_held_to(family: Family, parallel: bool) -> None:
    grammar = family.grammar(TOOLS, parallel=parallel)
    assert grammar is not None
    check_constraint(Constraint("grammar", grammar))

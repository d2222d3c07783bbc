"""Formats of the user's own as tables of strings, and those that come from other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.formats.presets import PresetError, read_preset
from exlchat.chat.prompt.formats.table import TableError, from_table
from exlchat.chat.prompt_format import PromptFormat, choose_format, format_files, read_format
from exlchat.llm.thought_splitter import ThinkingMarks
from tests.chat.scripted_engine import ScriptedEngine
from tests.patience import within

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "{{ 1 + 1 }}"},
]
VICUNA = """
about = "like Vicuna"
stop = ["</s>", "USER:"]
[system]
suffix = " "
[user]
prefix = "USER: "
suffix = " "
[assistant]
prefix = "ASSISTANT: "
suffix = "</s>"
generation_prompt = "ASSISTANT:"
[thinking]
opening = "<t>"
closing = "</t>"
keep = true
"""


def rendered(source: str, talk: list[dict[str, str]] | None = None) -> str:
    return PromptFormat("x", source).render(talk or TALK, bos_token="<s>", eos_token="</s>")


def test_a_table_says_what_stands_around_each_message() -> None:
    table = from_table(VICUNA)
    assert rendered(table.source) == "<s>Be brief. USER:  Hi  ASSISTANT: Yo</s>USER: {{ 1 + 1 }} ASSISTANT:"
    assert table.stop == ("</s>", "USER:")
    assert table.thinking == ThinkingMarks("<t>", "</t>")
    assert table.keeps_thinking


def test_bos_default_system_and_stripping() -> None:
    text = 'bos = ""\nstrip = true\ndefault_system = "Help."\n[system]\nsuffix = "\\n"\n[user]\nprefix = "Q: "\n'
    source = from_table(text + '[assistant]\nprefix = "A: "\n').source
    assert rendered(source) == "Be brief.\nQ: HiA: YoQ: {{ 1 + 1 }}A: "
    assert rendered(source, TALK[1:2]) == "Help.\nQ: HiA: "


def test_first_and_last_and_what_stands_without_a_system_prompt() -> None:
    text = """
        [system]
        suffix = "."
        without = "-"
        [user]
        prefix = "Q"
        first_prefix = "Q1"
        last_prefix = "Q9"
        [assistant]
        prefix = "A"
        first_prefix = "A1"
    """
    source = from_table(text).source
    assert rendered(source) == "<s>Be brief..Q1 Hi AYoQ9{{ 1 + 1 }}A"
    assert rendered(source, TALK[2:]) == "<s>-A1YoQ9{{ 1 + 1 }}A"
    assert rendered(source, TALK[1:2]) == "<s>-Q9 Hi A"
    with pytest.raises(TableError, match="says twice what stands without a system prompt"):
        from_table('default_system = "x"\n' + text)


def test_a_table_names_who_speaks() -> None:
    source = from_table("""
        default_system = "You are {{Char}}."
        bos = ""
        [user]
        prefix = "<{{name}} {{round}}>"
        [assistant]
        prefix = "<{{NAME}} to {{user}}>"
        suffix = "{{no macro}}"
        [names]
        prefix = "{{name}}: "
        generation_prompt = "<{{char}}>{{char}}:"
    """).source
    assert rendered(source, TALK[1:]) == (
        "You are Assistant.<User 0> Hi <Assistant to User>Yo{{no macro}}<User 1>{{ 1 + 1 }}<Assistant to User>"
    )
    told = PromptFormat("x", source).render(TALK[1:], user_name="{{char}}", assistant_name="Ada")
    assert told == (
        "You are Ada.<{{char}} 0>{{char}}: Hi<Ada to {{char}}>Ada: Yo{{no macro}}"
        "<{{char}} 1>{{char}}: {{ 1 + 1 }}<Ada>Ada:"
    )


@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("{}%#\"'\\-\n")), min_size=1, max_size=12))
def test_no_string_of_a_table_becomes_code(text: str) -> None:
    import tomlkit

    table = {"default_system": text, "user": {"prefix": text}, "assistant": {"prefix": text, "suffix": text}}
    source = from_table(tomlkit.dumps(table)).source
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert PromptFormat("x", source).render(asked) == f"{text}{text}x{text}y{text}{text}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("= 1", "is not TOML"),
        ("x = " + "[" * 5000, "nested too deep"),
        ("bso = 'x'", "unknown key bso; did you mean bos?"),
        ("zzz = 1", "unknown key zzz; there are about, bos"),
        ("bos = 1", "bos must be a text in quotes, not 1"),
        ("user = 'x'", "user must be a table"),
        ("[user]\nprefx = 'x'", "user.prefx; did you mean user.prefix?"),
        ("[user]\nprefix = ['x']", "user.prefix must be a text"),
        ("[user]\nprefix = 'x'", "says nothing of assistant"),
        ("[user]\n[assistant]", "says nothing around messages"),
        ("stop = [1]\n[user]\nprefix = 'x'\n[assistant]\nprefix = 'y'", "stop holds something else"),
        ("stop = 'x'", "stop must be a list"),
        (f"stop = {[str(one) for one in range(201)]}\n[user]\nprefix = 'x'\n[assistant]", "more than 200 texts"),
        ("[user]\nprefix = 'x'\n[assistant]\nprefix = 'y'\n[thinking]\nopening = 'x'", "needs opening and closing"),
        ("default_system = '" + "x" * 30_000 + "'", "more than 20,000 characters"),
        ("'a\\u001b[31m' = 1", "unknown key"),
    ],
    ids=range(16),
)
def test_a_wrong_table_is_named_in_one_line(text: str, part: str, tmp_path: Path) -> None:
    with within(1):
        with pytest.raises(TableError) as caught:
            from_table(text)
        assert part in str(caught.value)
        assert str(caught.value).isprintable()
        file = tmp_path / "mine.toml"
        file.write_text(text)
        with pytest.raises(PromptError, match=r"mine\.toml: "):
            read_format(file)


def test_tables_stand_in_the_templates_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(VICUNA)
    (tmp_path / "other.jinja").write_text("x")
    (tmp_path / "huge.jinja").write_text("x" * 1_000_001)
    assert format_files(tmp_path) == ["huge", "mine", "other"]
    info = ScriptedEngine().info
    for wanted in ("mine", "mine.toml", str(tmp_path / "mine.toml")):
        form, notice = choose_format(info, wanted, tmp_path)
        assert (form.name, form.stop, form.keeps_thinking, notice) == ("mine", ("</s>", "USER:"), True, None)
    with pytest.raises(PromptError, match="larger than 1 MB"):
        choose_format(info, "huge", tmp_path)


# Other programs


def test_instruction_templates_of_text_generation_webui() -> None:
    jinja = "{%- for message in messages %}\n  {{- '<' + message['role'] + '>' + message['content'] }}\n{%- endfor %}"
    indented = "\n".join("  " + line for line in jinja.splitlines())
    found = read_preset("instruction_template: |-\n" + indented + "\n")
    assert (found.kind, found.ending) == ("text-generation-webui", ".jinja")
    assert rendered(found.text) == "<system>Be brief.<user> Hi <assistant>Yo<user>{{ 1 + 1 }}"


INSTRUCT = {
    "name": "ChatML",
    "input_sequence": "<|im_start|>user",
    "output_sequence": "<|im_start|>assistant",
    "system_sequence": "<|im_start|>system",
    "stop_sequence": "<|im_end|>",
    "input_suffix": "<|im_end|>\n",
    "output_suffix": "<|im_end|>\n",
    "system_suffix": "<|im_end|>\n",
    "last_output_sequence": "",
    "first_output_sequence": "",
    "wrap": True,
    "macro": True,
    "names_behavior": "force",
    "activation_regex": "",
    "system_same_as_user": False,
}


def test_a_file_of_several_presets_has_the_system_prompt_and_the_thoughts_too() -> None:
    whole = {
        "instruct": {**INSTRUCT, "input_sequence": "{{user}}:", "user_alignment_message": "go on", "wrap": False},
        "context": {"story_string": "{{system}}"},
        "sysprompt": {"name": "x", "content": "You are {{char}}."},
        "reasoning": {"name": "DeepSeek", "prefix": "<think>\n", "suffix": "\n</think>", "separator": "\n\n"},
    }
    found = read_preset(json.dumps(whole))
    assert found.left_out == ("user_alignment_message", "context")
    assert (found.kind, found.ending, found.name) == ("SillyTavern", ".toml", "ChatML")
    table = from_table(found.text)
    assert table.thinking == ThinkingMarks("<think>", "</think>")
    assert rendered(table.source, TALK[1:2]).startswith("<s><|im_start|>systemYou are Assistant.<|im_end|>\nUser: Hi ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "null",
        "{",
        '{"a":' * 3000,
        "[" * 3000,
        "- " * 3000,
        "x: *y",
        "!!python/object/apply:os.system ['touch /tmp/no']",
        "x" * 200_000,
        json.dumps({"story_string": "x"}),
        json.dumps({"input_sequence": 1, "output_sequence": "x"}),
        json.dumps({"input_sequence": "", "output_sequence": ""}),
        json.dumps({"turn_template": "<|user|>"}),
        "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b]\ninstruction_template: [*c, *c]",
    ],
    ids=range(15),
)
def test_what_is_no_preset_is_refused_in_one_line_at_once(text: str) -> None:
    with within(1):
        with pytest.raises(PresetError) as caught:
            read_preset(text)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x: 1\ny: *y", "is YAML with a reference (*y, line 2); write out what it means"),
        ("- " * 3000, "is nested more than 100 levels deep (line 1)"),
        ("x: 1\ny: z: 2", "is no YAML (line 2: mapping values are not allowed in this context)"),
        ("user: yes\nbot: 1\nturn_template: <|user-message|><|bot-message|>", "bot must be a text, not 1; mend it"),
    ],
)
def test_what_is_wrong_with_yaml_is_said_with_its_line(text: str, line: str) -> None:
    with pytest.raises(PresetError) as caught:
        read_preset(text)
    assert str(caught.value).startswith(line)


def test_what_yaml_1_1_took_for_a_value_is_text() -> None:
    found = read_preset("instruction_template: yes\n")
    assert (found.ending, found.text) == (".jinja", "yes")


@pytest.mark.parametrize(
    "preset",
    [
        {"instruction_template": "a\ud800"},
        {"turn_template": "a\ud800<|user-message|>b<|bot-message|>"},
        {"input_sequence": "a\ud800", "output_sequence": "b", "system_prompt": "\ud800"},
        {"input_sequence": "a", "output_sequence": "b", "reasoning": {"prefix": "<\ud800", "suffix": ">"}},
    ],
    ids=range(4),
)
def test_half_a_character_is_replaced_because_no_file_can_hold_it(preset: dict[str, object]) -> None:
    assert "\ufffd" in read_preset(json.dumps(preset)).text.encode("utf-8").decode("utf-8")

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt_format import PromptFormat, choose_format, format_files, render
from exlchat.llm.info import ModelInfo
from tests.chat import families, templates

Messages = list[dict[str, str]]

SYSTEM = {"role": "system", "content": "Be brief.  "}
HELLO = {"role": "user", "content": "  Hello <b> & 'you'\n"}
ANSWER = {"role": "assistant", "content": " Hi!\n\n```py\nx = {}\n``` "}
THOUGHT = {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHi!"}
MORE = {"role": "user", "content": "Mehr, bitte: ä € 😀"}

CONVERSATIONS: dict[str, Messages] = {
    "one": [HELLO],
    "system": [SYSTEM, HELLO],
    "three": [HELLO, ANSWER, MORE],
    "system and three": [SYSTEM, HELLO, ANSWER, MORE],
    "thinking": [HELLO, THOUGHT, MORE],
    "answer last": [HELLO, ANSWER],
    "out of order": [HELLO, HELLO],
}


@pytest.fixture(scope="module")
def peer() -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=empty, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", templates.ALL)
def test_the_text_is_what_transformers_makes(
    peer: Any, template: str, conversation: str, add_generation_prompt: bool
) -> None:
    source, messages = templates.ALL[template], CONVERSATIONS[conversation]
    expected = peer_text(peer, messages, source, add_generation_prompt)
    if isinstance(expected, str):
        ours = render(messages, source, add_generation_prompt=add_generation_prompt, bos_token="<s>", eos_token="</s>")
        assert ours == expected
    else:
        with pytest.raises(PromptError, match=re.escape(str(expected))):
            render(messages, source, add_generation_prompt=add_generation_prompt, bos_token="<s>", eos_token="</s>")


def peer_text(peer: Any, messages: Messages, source: str, add_generation_prompt: bool) -> str | Exception:
    from jinja2.exceptions import TemplateError

    try:
        text: str = peer.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except TemplateError as refusal:
        return refusal
    return text


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_built_in_chatml_is_the_usual_one(peer: Any, conversation: str, add_generation_prompt: bool) -> None:
    messages = CONVERSATIONS[conversation]
    expected = peer.apply_chat_template(
        messages, chat_template=templates.CHATML, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert render(messages, "chatml", add_generation_prompt=add_generation_prompt) == expected
    with_bos = render(messages, "chatml", add_generation_prompt=add_generation_prompt, bos_token="<s>")
    assert with_bos == "<s>" + expected
    its_bos = render(messages, "chatml", add_generation_prompt=add_generation_prompt, bos_token="<|im_start|>")
    assert its_bos == expected


def test_the_plain_format_reads_like_a_dialogue() -> None:
    messages = [SYSTEM, HELLO, {"role": "assistant", "content": " Hi "}, MORE]
    assert render(messages, "plain", bos_token="<s>") == (
        "<s>Be brief.\n\nUser: Hello <b> & 'you'\n\nAssistant: Hi\n\nUser: Mehr, bitte: ä € 😀\n\nAssistant:"
    )


def test_variables_reach_the_template() -> None:
    assert render([HELLO], "{{ mood }}{{ eos_token }}", mood="fine", eos_token="</s>") == "fine</s>"
    assert render([HELLO], "{{ bos_token + 'x' }}") == "x"


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("chatlm", ["'chatlm'", "did you mean chatml?"]),
        ("zzz", ["'zzz'", "chatml, plain"]),
        ("{% for x in %}", ["line 1"]),
        ("a\nb\n{{ x", ["line 3"]),
        ("{{ raise_exception('No system, \x1b[31mplease\n') }}", ["No system, [31mplease"]),
        ("{{ none + 'x' }}", ["unsupported operand"]),
        ("{{ nothing.at.all }}", ["'nothing' is undefined"]),
        ("{{ messages[9].content.strip() }}", ["no element 9"]),
        ("{{ 1 / 0 }}", ["division by zero"]),
        ("{% include 'other' %}", ["no loader"]),
    ],
)
def test_a_template_that_fails_says_why_in_one_line(template: str, parts: list[str]) -> None:
    with pytest.raises(PromptError) as caught:
        render([HELLO], template)
    line = str(caught.value)
    assert line.isprintable()
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 1 ~ 'a' ~ none ~ missing ~ [2] }}", "1aNone[2]"),
        ("{% set x = 'a' %}{{ x ~ (x ~ 'b') | upper }}", "aAB"),
        ("{{ 'a,b'.replace(',', '-') }}{{ 'a' | center(3) }}{{ '-'.join(['x', 'y']) }}", "a-b a x-y"),
        ("{{ messages | map(attribute='role') | join('+') }}", "user"),
        ("{{ 'a\nb' | indent(2) }}{{ '%s.' | format('c') }}{{ '{}'.format('d') }}", "a\n  bc.d"),
        ("{{ [1, 2, 3] | batch(2) | list }}{{ {'a': [1]} | tojson(indent=1) }}", '[[1, 2], [3]]{\n "a": [\n  1\n ]\n}'),
    ],
)
def test_what_templates_do_to_texts_stays_as_it_is_in_jinja(template: str, text: str) -> None:
    assert render([HELLO], template) == text


def test_what_blocks_and_macros_keep_is_as_it_was() -> None:
    source = "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set y %}{{ f('a') }}b{% endset %}{{ y }}{{ f(y) }}"
    assert render([HELLO], source) == "<a>b<<a>b>"


def info(chat_template: str | None = None, special_tokens: tuple[str, ...] = ()) -> ModelInfo:
    return ModelInfo(
        "tiny", "/m", "Llama", "fp16", 1, 1, 1, "cpu", "f32", "<s>", "</s>", (), special_tokens, chat_template
    )


def test_the_models_own_template_comes_first() -> None:
    for wanted in (None, "model"):
        chosen, notice = choose_format(info("{{ 1 }}", ("<|im_start|>", "<|im_end|>")), wanted)
        assert (chosen.name, chosen.source, notice) == ("model", "{{ 1 }}", None)


@pytest.mark.parametrize(
    ("special", "architecture", "vocab_size", "name"),
    [
        (("<s>", "<|im_start|>", "<|im_end|>"), "LlamaForCausalLM", 32000, "chatml"),
        (("<|im_start|>",), "Qwen2ForCausalLM", 151_936, "plain"),
        ((), "Qwen2ForCausalLM", 32000, "plain"),
        (("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "", 128_256, "llama-3"),
        (("<bos>", "<start_of_turn>", "<end_of_turn>"), "Gemma2ForCausalLM", 256_000, "gemma"),
        (("<s>", "[INST]", "[/INST]"), "MistralForCausalLM", 32768, "mistral"),
        (("<s>", "</s>"), "MistralForCausalLM", 32000, "mistral-v1"),
        (("<s>", "</s>"), "LlamaForCausalLM", 32000, "llama-2"),
        (("<|user|>", "<|assistant|>", "<|end|>"), "Phi3ForCausalLM", 32064, "phi-3"),
        (("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"), "", 256_000, "command-r"),
    ],
)
def test_without_one_the_tokenizer_decides_and_a_line_says_so(
    special: tuple[str, ...], architecture: str, vocab_size: int, name: str
) -> None:
    model = replace(info(None, special), architecture=architecture, vocab_size=vocab_size)
    chosen, notice = choose_format(model, None)
    assert chosen.name == name
    assert notice is not None
    assert notice.startswith(f"tiny has no chat template of its own; using the built-in format {name}: ")
    # Not every family calls its marks special.
    assert choose_format(replace(model, special_tokens=(), added_tokens=special), None)[0].name == name


def test_the_other_templates_of_a_model_are_there_by_name() -> None:
    model = replace(info("{{ 1 }}"), named_templates={"rag": "{{ 2 }}", "tool_use": "{{ 3 }}"})
    chosen, notice = choose_format(model, "model:rag")
    assert (chosen.name, chosen.source, notice) == ("model:rag", "{{ 2 }}", None)
    assert choose_format(model, "model")[0].source == "{{ 1 }}"
    with pytest.raises(PromptError, match=r"did you mean model:tool_use\?"):
        choose_format(model, "model:tools_use")
    with pytest.raises(PromptError) as caught:
        choose_format(replace(model, named_templates={"a\x1b[31m\nb": "x"}), "zzz")
    assert str(caught.value).isprintable()
    notice = choose_format(replace(model, chat_template=None), None)[1]
    assert notice is not None
    assert notice.endswith("(of its own there are model:rag, model:tool_use)")


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_built_in_formats_are_those_of_their_families(peer: Any, conversation: str) -> None:
    messages = [{**message, "content": message["content"].strip()} for message in CONVERSATIONS[conversation]]
    for name, source in BUILT_IN_PEERS.items():
        expected = peer_text(peer, messages, source, True)
        if isinstance(expected, str):
            assert render(messages, name, bos_token="<s>", eos_token="</s>") == expected, name


BUILT_IN_PEERS = {
    "llama-3": families.source("llama-3"),
    "llama-2": families.source("llama-2"),
    "mistral": families.source("mistral-v3"),
    "mistral-v1": families.source("mistral-v1"),
    "gemma": families.source("gemma-3"),
    "phi-3": families.source("phi-3"),
    "command-r": families.source("command-r"),
}


SCRAPS = [
    "{{ dict.fromkeys(['a', 'b'], 1) | tojson }}{{ dict(a=1) }}",
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'none' %}x{% else %}none{% endfor %}",
    "{% for m in messages recursive %}{{ loop.depth }}{% endfor %}",
    "{% for a, b in messages | zip(messages) %}x{% endfor %}",
    "{% set ns = namespace(self=1, x=2) %}{{ ns.self }}{{ ns.x }}{{ ns.y is defined }}",
    "{% macro f(a, b='c') %}{{ a ~ b ~ varargs ~ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, d=4) }}",
    "{% call(x) (messages[0].items | default(none)) %}{{ x }}{% endcall %}",
    "{% macro box() %}<{{ caller() }}>{% endmacro %}{% call box() %}{{ messages[0].role }}{% endcall %}",
    "{{ messages | map(attribute='content') | list | tojson(indent=2, sort_keys=true) }}",
    "{{ messages[0] | items | list }}{{ messages[0].get('x', 'y') }}{{ messages[-1]['content'][:3] }}",
    "{{ tools is none }}{{ documents is none }}{{ builtin_tools is defined }}{{ add_generation_prompt }}",
    "{{ '%s and %d' % ('a', 3) }}{{ '{} {x}'.format(1, x=2) }}{{ 'a' ~ 1 ~ none }}{{ 7 // 2 }}{{ 2 ** 5 }}",
    "{{ bos_token is defined }}{{ unk_token is defined }}{{ joiner is defined }}{{ cycler('a', 'b').next() }}",
    "  {%- if true +%}\n  a\n  {%- endif %}  \n\t{# note #}\n b {%+ if true %}c{% endif %}\n\n",
    "{% filter upper %}a{% raw %}{{ b }}{% endraw %}{% endfilter %}{% with x = 3 %}{{ x }}{% endwith %}",
    "{% set content %}block {{ 1 + 1 }}{% endset %}{{ content | trim }}{% do messages %}",
    "{{ ['b', 'a'] | sort | join(',') }}{{ {'b': 1, 'a': 2} | dictsort }}{{ range(3) | list }}{{ 'x' in 'xyz' }}",
]


@pytest.mark.parametrize("source", SCRAPS)
def test_each_construct_does_what_it_does_in_transformers(peer: Any, source: str) -> None:
    messages = [SYSTEM, HELLO, ANSWER]
    wanted: str | None = None
    try:
        wanted = peer.apply_chat_template(messages, chat_template=source, tokenize=False, add_generation_prompt=True)
    except Exception:
        with pytest.raises(PromptError):
            render(messages, source, bos_token="<s>", eos_token="</s>")
    if wanted is not None:
        assert render(messages, source, bos_token="<s>", eos_token="</s>") == wanted


def test_variables_of_a_format_are_seen_in_every_rendering() -> None:
    thinking = PromptFormat("x", "{{ 'on' if enable_thinking else 'off' }}", variables={"enable_thinking": True})
    assert thinking.render([HELLO]) == "on"
    assert replace(thinking, variables={}).render([HELLO]) == "off"


def test_formats_by_name_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "mine.jinja").write_text("mine")
    (tmp_path / "loose.jinja").write_text("loose")
    monkeypatch.chdir(tmp_path)
    assert choose_format(info("{{ 1 }}"), "plain", folder)[0].name == "plain"
    for wanted in ("mine", "mine.jinja"):
        chosen, notice = choose_format(info(), wanted, folder)
        assert (chosen.name, chosen.source, notice) == ("mine", "mine", None)
    assert choose_format(info(), str(tmp_path / "loose.jinja"), folder)[0].source == "loose"
    assert choose_format(info(), "loose.jinja", folder)[0].source == "loose"
    assert choose_format(info(), "./loose.jinja", None)[0].source == "loose"
    assert format_files(folder) == ["mine"]
    assert format_files(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("wanted", "part"),
    [("mnie", "did you mean mine?"), ("../loose", "there is no prompt format"), ("bad", "not UTF-8")],
)
def test_a_format_that_is_not_there_is_named(tmp_path: Path, wanted: str, part: str) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "mine.jinja").write_text("mine")
    (folder / "bad.jinja").write_bytes(b"\xff")
    (tmp_path / "loose.jinja").write_text("loose")
    with pytest.raises(PromptError) as caught:
        choose_format(info(), wanted, folder)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jinja_is_imported_by_the_first_rendering_only() -> None:
    heavy = "{'jinja2', 'torch', 'tokenizers', 'textual'}"
    code = f"import sys, exlchat.chat.turn, exlchat.chat.store.conversations; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_format_strings_do_not_reach_into_objects() -> None:
    assert render([HELLO], "{{ '{0.__class__}|{0}'.format(1) }}") == "|1"

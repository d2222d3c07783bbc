"""SillyTavern's instruct presets, held against what that program sends.

The values are those of its 29 default presets of 1.12, without empty ones, and of some of 1.13 and later, which say
what stands around a system prompt. The expected texts follow from its source (`public/scripts/instruct-mode.js`, and
`Generate` in `public/script.js`): written out below for a talk of three questions, and once more as a rule for all.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from exlchat.chat.prompt.formats.presets import read_preset
from exlchat.chat.prompt.formats.table import from_table
from exlchat.chat.prompt.formats.table_source import named
from exlchat.chat.prompt_format import PromptFormat

BEGIN = "Let's get started. Please respond based on the information and instructions provided above."
HEAD, TURN = "<|start_header_id|>{}<|end_header_id|>\n\n", "<|START_OF_TURN_TOKEN|>{}"
PRESETS: dict[str, dict[str, Any]] = {
    "Adventure": {"wrap": True},
    "Alpaca-Single-Turn": {
        "wrap": True,
        "first_output_sequence": "<START OF CHAT>",
        "last_output_sequence": "\n### Response:",
    },
    "Alpaca": {
        "wrap": True,
        "input_sequence": "### Instruction:",
        "output_sequence": "### Response:",
        "system_sequence": "### Input:",
        "input_suffix": "\n\n",
        "output_suffix": "\n\n",
        "system_suffix": "\n\n",
    },
    "ChatML-Names": {
        "wrap": True,
        "input_sequence": "<|im_start|>[{{name}}]",
        "output_sequence": "<|im_start|>[{{name}}]",
        "system_sequence": "<|im_start|>system",
        "stop_sequence": "<|im_end|>",
        "input_suffix": "<|im_end|>\n",
        "output_suffix": "<|im_end|>\n",
        "system_suffix": "<|im_end|>\n",
    },
    "ChatML": {
        "wrap": True,
        "names_behavior": "always",
        "input_sequence": "<|im_start|>user",
        "output_sequence": "<|im_start|>assistant",
        "system_sequence": "<|im_start|>system",
        "stop_sequence": "<|im_end|>",
        "input_suffix": "<|im_end|>\n",
        "output_suffix": "<|im_end|>\n",
        "system_suffix": "<|im_end|>\n",
    },
    "Command R": {
        "names_behavior": "always",
        "input_sequence": TURN.format("<|USER_TOKEN|>"),
        "output_sequence": TURN.format("<|CHATBOT_TOKEN|>"),
        "system_sequence": TURN.format("<|SYSTEM_TOKEN|>"),
        "stop_sequence": "<|END_OF_TURN_TOKEN|>",
        "input_suffix": "<|END_OF_TURN_TOKEN|>",
        "output_suffix": "<|END_OF_TURN_TOKEN|>",
        "system_suffix": "<|END_OF_TURN_TOKEN|>",
    },
    "DreamGen Role-Play V1 ChatML": {
        "input_sequence": "\n<|im_start|>text names= {{name}}\n",
        "output_sequence": "\n<|im_start|>text names= {{name}}\n",
        "stop_sequence": "\n<|im_start|>",
        "input_suffix": "<|im_end|>",
        "output_suffix": "<|im_end|>",
        "system_same_as_user": True,
    },
    "DreamGen Role-Play V1 Llama3": {
        "input_sequence": "<|eot_id|>\n<|start_header_id|>writer character: {{user}}<|end_header_id|>\n\n",
        "output_sequence": "<|eot_id|>\n<|start_header_id|>writer character: {{char}}<|end_header_id|>\n\n",
    },
    "Gemma 2": {
        "wrap": True,
        "input_sequence": "<start_of_turn>user",
        "output_sequence": "<start_of_turn>model",
        "system_sequence": "<start_of_turn>system",
        "stop_sequence": "<end_of_turn>",
        "input_suffix": "<end_of_turn>\n",
        "output_suffix": "<end_of_turn>\n",
        "system_suffix": "<end_of_turn>\n",
        "system_same_as_user": True,
    },
    "Koala": {
        "input_sequence": "USER: ",
        "output_sequence": "GPT: ",
        "output_suffix": "</s>",
        "system_sequence_prefix": "BEGINNING OF CONVERSATION: ",
        "system_same_as_user": True,
    },
    "Libra-32B": {"wrap": True, "names_behavior": "always", "last_output_sequence": "\n### Response:"},
    "Lightning 1.1": {
        "wrap": True,
        "input_sequence": "### Instruction:",
        "output_sequence": "### Response: (length = unlimited)",
        "system_same_as_user": True,
    },
    "Llama 2 Chat": {
        "input_sequence": "[INST] ",
        "input_suffix": " [/INST]\n",
        "output_suffix": "\n",
        "user_alignment_message": BEGIN,
        "system_same_as_user": True,
    },
    "Llama 3 Instruct": {
        "names_behavior": "always",
        "input_sequence": HEAD.format("user"),
        "output_sequence": HEAD.format("assistant"),
        "system_sequence": HEAD.format("system"),
        "stop_sequence": "<|eot_id|>",
        "input_suffix": "<|eot_id|>",
        "output_suffix": "<|eot_id|>",
        "system_suffix": "<|eot_id|>",
        "system_same_as_user": True,
    },
    "Llama-3-Instruct-Names": {
        "input_sequence": HEAD.format("[{{name}}]"),
        "output_sequence": HEAD.format("[{{name}}]"),
        "system_sequence": HEAD.format("system"),
        "stop_sequence": "<|eot_id|>",
        "input_suffix": "<|eot_id|>",
        "output_suffix": "<|eot_id|>",
        "system_suffix": "<|eot_id|>",
        "system_same_as_user": True,
    },
    "Metharme": {
        "input_sequence": "<|user|>",
        "output_sequence": "<|model|>",
        "stop_sequence": "</s>",
        "system_sequence_prefix": "<|system|>",
        "system_same_as_user": True,
    },
    "Mistral V1": {
        "names_behavior": "always",
        "input_sequence": " [INST] ",
        "output_sequence": " [/INST] ",
        "last_output_sequence": " [/INST]",
        "output_suffix": "</s>",
        "user_alignment_message": BEGIN,
        "system_same_as_user": True,
    },
    "Mistral V2 & V3": {
        "names_behavior": "always",
        "input_sequence": "[INST] ",
        "output_sequence": "[/INST] ",
        "last_output_sequence": "[/INST]",
        "output_suffix": "</s>",
        "user_alignment_message": BEGIN,
        "system_same_as_user": True,
    },
    "Mistral V3-Tekken": {
        "names_behavior": "always",
        "input_sequence": "[INST]",
        "output_sequence": "[/INST]",
        "output_suffix": "</s>",
        "user_alignment_message": BEGIN,
        "system_same_as_user": True,
    },
    "OpenOrca-OpenChat": {
        "input_sequence": "\nUser: ",
        "output_sequence": "\nAssistant: ",
        "input_suffix": "<|end_of_turn|>",
        "output_suffix": "<|end_of_turn|>",
    },
    "Phi": {
        "names_behavior": "always",
        "input_sequence": "<|user|>\n",
        "output_sequence": "<|assistant|>\n",
        "system_sequence": "<|system|>\n",
        "stop_sequence": "<|end|>",
        "input_suffix": "<|end|>\n",
        "output_suffix": "<|end|>\n",
        "system_suffix": "<|end|>\n",
    },
    "Pygmalion": {
        "names_behavior": "always",
        "input_sequence": "<|user|>",
        "output_sequence": "<|model|>",
        "stop_sequence": "<|user|>",
        "system_sequence_prefix": "<|system|>",
        "system_same_as_user": True,
    },
    "Story": {"wrap": True},
    "Synthia": {
        "input_sequence": "USER: ",
        "output_sequence": "ASSISTANT: ",
        "system_sequence": "SYSTEM: ",
        "system_sequence_prefix": "SYSTEM: ",
        "input_suffix": "\n",
        "output_suffix": "\n",
        "system_suffix": "\n",
        "user_alignment_message": BEGIN,
    },
    "Vicuna 1.0": {
        "wrap": True,
        "input_sequence": "### Human:",
        "output_sequence": "### Assistant:",
        "system_same_as_user": True,
    },
    "Vicuna 1.1": {
        "input_sequence": "\nUSER: ",
        "output_sequence": "\nASSISTANT: ",
        "output_suffix": "</s>",
        "system_sequence_prefix": "BEGINNING OF CONVERSATION:",
        "system_same_as_user": True,
    },
    "WizardLM-13B": {
        "wrap": True,
        "input_sequence": "USER: ",
        "output_sequence": "ASSISTANT: ",
        "system_same_as_user": True,
    },
    "WizardLM": {"wrap": True, "output_sequence": "### Response:", "output_suffix": "</s>"},
    "simple-proxy-for-tavern": {
        "wrap": True,
        "input_sequence": "### Instruction:\n#### {{name}}:",
        "output_sequence": "### Response:\n#### {{name}}:",
        "last_output_sequence": "### Response (2 paragraphs, engaging, natural):\n#### {{name}}:",
    },
}
DEFAULTS = {
    "wrap": False,
    "macro": True,
    "names_behavior": "none",
    "system_same_as_user": False,
    "skip_examples": False,
}
NAMES = {"user_name": "Bo", "assistant_name": "Ada"}
TALK = [("Hi", "Yo"), ("So?", "Fine."), ("Go on.", None)]
CHATML = (
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n"
    "<|im_start|>assistant\nFine.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
)


def written(preset: dict[str, Any], **more: Any) -> str:
    """As that program writes it, with all keys that a file of its time has."""
    keys = ("input_sequence", "output_sequence", "system_sequence", "stop_sequence", "last_output_sequence")
    keys += ("first_output_sequence", "system_sequence_prefix", "system_sequence_suffix", "activation_regex")
    keys += ("input_suffix", "output_suffix", "system_suffix", "user_alignment_message", "last_system_sequence")
    return json.dumps({**dict.fromkeys(keys, ""), **DEFAULTS, **preset, **more})


def made(text: str, *, system: str | None = None, talk: Any = TALK, **names: str) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    for asked, said in talk:
        messages += [{"role": "user", "content": asked}] if asked else []
        messages += [{"role": "assistant", "content": said}] if said else []
    return PromptFormat("x", from_table(read_preset(text).text).source).render(messages, **names)


def sent(
    preset: dict[str, Any], *, user: str = "User", char: str = "Assistant", names: bool = False, begun: str = ""
) -> str:
    """By the rule of `formatInstructModeChat` and `formatInstructModePrompt`; `begun` is an answer that goes on."""
    line = "\n" if preset.get("wrap") else ""

    def filled(text: str, name: str) -> str:
        return text.replace("{{user}}", user).replace("{{char}}", char).replace("{{name}}", name)

    def message(name: str, text: str, kind: str, preset: dict[str, Any] = preset) -> str:
        before = filled(preset.get(f"{kind}_sequence", ""), name)
        behind = filled(preset.get(f"{kind}_suffix", ""), name) or line
        text = (f"{name}: {text}" if names else text) + behind
        return before + line + text if before else text

    prompt = ""
    for asked, said in TALK:
        prompt += message(user, asked, "input") + (message(char, said, "output") if said else "")
    if begun:
        going_on = {
            **preset,
            "output_sequence": preset.get("last_output_sequence") or preset.get("output_sequence", ""),
        }
        return prompt + message(char, begun, "output", going_on)[: -len(preset.get("output_suffix") or line) or None]
    if line:
        prompt = prompt.removesuffix("\n")
    usual = preset.get("output_sequence", "")
    last = preset.get("last_output_sequence") or usual
    ending = line + filled(last, char)
    if names:
        filler = usual[-1] if last != usual and usual[-1:].isspace() and not last[-1:].isspace() else ""
        return prompt + ending + line + filler + f"{char}:"
    return prompt + (ending.rstrip() + line if line else ending)


def test_there_are_twenty_nine_of_them() -> None:
    assert len(PRESETS) == 29


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_that_program_sends(name: str) -> None:
    text = written(PRESETS[name])
    assert made(text) == sent(PRESETS[name])
    always = PRESETS[name].get("names_behavior") == "always"
    assert made(text, **NAMES) == sent(PRESETS[name], user="Bo", char="Ada", names=always)
    assert made(written(PRESETS[name], names_behavior="none"), **NAMES) == sent(PRESETS[name], user="Bo", char="Ada")


WRITTEN_OUT = {
    "ChatML": CHATML,
    "ChatML-Names": CHATML.replace(">user", ">[User]").replace(">assistant", ">[Assistant]"),
    "Llama 2 Chat": "[INST] Hi [/INST]\nYo\n[INST] So? [/INST]\nFine.\n[INST] Go on. [/INST]\n",
    "Llama 3 Instruct": (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "Yo<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nSo?<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\nFine.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGo on.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "Mistral V1": " [INST] Hi [/INST] Yo</s> [INST] So? [/INST] Fine.</s> [INST] Go on. [/INST]",
    "Mistral V2 & V3": "[INST] Hi[/INST] Yo</s>[INST] So?[/INST] Fine.</s>[INST] Go on.[/INST]",
    "Mistral V3-Tekken": "[INST]Hi[/INST]Yo</s>[INST]So?[/INST]Fine.</s>[INST]Go on.[/INST]",
    "Alpaca": (
        "### Instruction:\nHi\n\n### Response:\nYo\n\n### Instruction:\nSo?\n\n### Response:\nFine.\n\n"
        "### Instruction:\nGo on.\n\n### Response:\n"
    ),
    "Alpaca-Single-Turn": "Hi\nYo\nSo?\nFine.\nGo on.\n\n### Response:\n",
    "Vicuna 1.0": (
        "### Human:\nHi\n### Assistant:\nYo\n### Human:\nSo?\n### Assistant:\nFine.\n"
        "### Human:\nGo on.\n### Assistant:\n"
    ),
    "Vicuna 1.1": ("\nUSER: Hi\nASSISTANT: Yo</s>\nUSER: So?\nASSISTANT: Fine.</s>\nUSER: Go on.\nASSISTANT: "),
    "Gemma 2": (
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n<start_of_turn>user\nSo?"
        "<end_of_turn>\n<start_of_turn>model\nFine.<end_of_turn>\n<start_of_turn>user\nGo on.<end_of_turn>\n"
        "<start_of_turn>model\n"
    ),
    "Metharme": "<|user|>Hi<|model|>Yo<|user|>So?<|model|>Fine.<|user|>Go on.<|model|>",
    "WizardLM": "Hi\n### Response:\nYo</s>So?\n### Response:\nFine.</s>Go on.\n### Response:\n",
    # The prompt's end loses the space that stands before the line break elsewhere.
    "WizardLM-13B": ("USER: \nHi\nASSISTANT: \nYo\nUSER: \nSo?\nASSISTANT: \nFine.\nUSER: \nGo on.\nASSISTANT:\n"),
    "Story": "Hi\nYo\nSo?\nFine.\nGo on.\n",
    "simple-proxy-for-tavern": (
        "### Instruction:\n#### User:\nHi\n### Response:\n#### Assistant:\nYo\n### Instruction:\n#### User:\nSo?\n"
        "### Response:\n#### Assistant:\nFine.\n### Instruction:\n#### User:\nGo on.\n"
        "### Response (2 paragraphs, engaging, natural):\n#### Assistant:\n"
    ),
    "DreamGen Role-Play V1 ChatML": (
        "\n<|im_start|>text names= User\nHi<|im_end|>\n<|im_start|>text names= Assistant\nYo<|im_end|>\n<|im_start|>"
        "text names= User\nSo?<|im_end|>\n<|im_start|>text names= Assistant\nFine.<|im_end|>\n<|im_start|>text names= "
        "User\nGo on.<|im_end|>\n<|im_start|>text names= Assistant\n"
    ),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_what_most_of_them_send_written_out(name: str) -> None:
    assert made(written(PRESETS[name])) == WRITTEN_OUT[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "ChatML",
            "<|im_start|>user\nBo: Hi<|im_end|>\n<|im_start|>assistant\nAda: Yo<|im_end|>\n<|im_start|>user\n"
            "Bo: So?<|im_end|>\n<|im_start|>assistant\nAda: Fine.<|im_end|>\n<|im_start|>user\nBo: Go on.<|im_end|>\n"
            "<|im_start|>assistant\nAda:",
        ),
        # The space that the last output sequence has lost stands before the name.
        (
            "Mistral V2 & V3",
            "[INST] Bo: Hi[/INST] Ada: Yo</s>[INST] Bo: So?[/INST] Ada: Fine.</s>[INST] Bo: Go on.[/INST] Ada:",
        ),
        ("Libra-32B", "Bo: Hi\nAda: Yo\nBo: So?\nAda: Fine.\nBo: Go on.\n\n### Response:\nAda:"),
        (
            "Pygmalion",
            "<|user|>Bo: Hi<|model|>Ada: Yo<|user|>Bo: So?<|model|>Ada: Fine.<|user|>Bo: Go on.<|model|>Ada:",
        ),
    ],
)
def test_with_names_always_they_stand_before_texts_where_a_persona_speaks(name: str, expected: str) -> None:
    text = written(PRESETS[name])
    assert made(text, **NAMES) == expected
    assert "Bo" not in made(text), "nobody is known"
    assert read_preset(text).notes == (
        "names_behavior always: names stand before texts where a persona speaks, and nowhere else",
    )
    assert read_preset(written(PRESETS[name], names_behavior="force")).notes == ()
    # As files before 1.12 say it.
    old = {key: value for key, value in json.loads(text).items() if key != "names_behavior"}
    assert made(json.dumps({**old, "names": True, "names_force_groups": True}), **NAMES) == expected


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "WizardLM-13B"])
def test_an_answer_goes_on_behind_the_end_of_the_prompt(name: str) -> None:
    # There the answer stands behind the last output sequence, without what would follow it. The one preset that is not
    # here has a space there then, which its prompt for a new answer has not.
    text = written(PRESETS[name])
    assert made(text) + "Because" == sent(PRESETS[name], begun="Because")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ChatML", "<|im_start|>system\nBe brief.<|im_end|>\n"),
        ("Alpaca", "### Input:\nBe brief.\n\n"),
        ("Command R", "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"),
        ("Phi", "<|system|>\nBe brief.<|end|>\n"),
        # As a message of the user: with both of its sides, and whatever else is there for the system.
        ("Llama 2 Chat", "[INST] Be brief. [/INST]\n"),
        ("Llama 3 Instruct", "<|start_header_id|>user<|end_header_id|>\n\nBe brief.<|eot_id|>"),
        ("Llama-3-Instruct-Names", "<|start_header_id|>[System]<|end_header_id|>\n\nBe brief.<|eot_id|>"),
        ("Gemma 2", "<start_of_turn>user\nBe brief.<end_of_turn>\n"),
        ("Vicuna 1.0", "### Human:\nBe brief.\n"),
        ("DreamGen Role-Play V1 ChatML", "\n<|im_start|>text names= System\nBe brief.<|im_end|>"),
        # What stands before the system prompt itself goes before that.
        ("Metharme", "<|system|>Be brief.\n"),
        ("Koala", "BEGINNING OF CONVERSATION: Be brief.\n"),
        ("Synthia", "SYSTEM: Be brief.\n"),
        # No sequence, no line break; a line of its own where texts are wrapped.
        ("OpenOrca-OpenChat", "Be brief."),
        ("Story", "Be brief.\n"),
        ("WizardLM", "Be brief.\n"),
    ],
)
def test_what_stands_around_the_system_prompt(name: str, expected: str) -> None:
    assert made(written(PRESETS[name]), system="Be brief.") == expected + sent(PRESETS[name])


NEWER = {"story_string_prefix": "", "story_string_suffix": "", "sequences_as_stop_strings": True}


@pytest.mark.parametrize(
    ("name", "story", "expected"),
    [
        ("ChatML", ("<|im_start|>system", "<|im_end|>\n"), "<|im_start|>system\nBe brief.<|im_end|>\n"),
        ("Mistral V1", (" [INST] ", " [/INST] Understood.</s>"), " [INST] Be brief. [/INST] Understood.</s>"),
        ("Llama 3 Instruct", (HEAD.format("system"), "<|eot_id|>"), HEAD.format("system") + "Be brief.<|eot_id|>"),
        ("Gemma 2", ("<start_of_turn>user", "<end_of_turn>\n"), "<start_of_turn>user\nBe brief.<end_of_turn>\n"),
        ("Alpaca", ("", "\n\n"), "Be brief.\n\n"),
        ("Metharme", ("<|system|>", ""), "<|system|>Be brief."),
        ("Libra-32B", ("### Instruction:", ""), "### Instruction:\nBe brief.\n"),
        ("Vicuna 1.0", ("", ""), "Be brief.\n"),
        ("OpenOrca-OpenChat", ("", ""), "Be brief."),
        ("Story", ("I am {{char}}, {{name}} to {{user}}:", "x"), "I am Assistant, System to User:\nBe brief.x"),
    ],
)
def test_newer_files_say_what_stands_around_it(name: str, story: tuple[str, str], expected: str) -> None:
    more = {**NEWER, "story_string_prefix": story[0], "story_string_suffix": story[1]}
    more |= {"system_sequence_prefix": None}
    assert made(written(PRESETS[name], **more), system="Be brief.") == expected + sent(PRESETS[name])
    assert made(written(PRESETS[name], **more)) == sent(PRESETS[name])


def test_first_and_last_sequences() -> None:
    preset = {"input_sequence": "U:", "output_sequence": "A:", "first_input_sequence": "U1:"}
    assert made(written(preset)) == "U1:HiA:YoU:So?A:Fine.U:Go on.A:"
    # The last question is not called the first even if it is.
    assert made(written(preset), talk=TALK[2:]) == "U:Go on.A:"
    preset |= {"last_input_sequence": "U9:", "last_output_sequence": "A9:", "first_output_sequence": "A1:"}
    assert made(written(preset)) == "U1:HiA:YoU:So?A:Fine.U9:Go on.A9:"
    assert made(written(preset), talk=TALK[2:]) == "U9:Go on.A9:"
    assert made(written(preset), talk=[(None, "Hello."), ("Hi", None)]) == "A1:Hello.U9:HiA9:"
    # Something that writes nothing is a sequence all the same.
    assert made(written({**preset, "last_output_sequence": "{{noop}}"})) == "U1:HiA:YoU:So?A:Fine.U9:Go on."


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        # Each line of each sequence, on a line of its own where they are wrapped; and where an answer is cut.
        (
            "ChatML",
            ["\n<|im_end|>", "\n<|im_start|>user", "\n<|im_start|>assistant", "\n<|im_start|>system", "<|im_end|>"],
        ),
        ("Alpaca", ["\n### Instruction:", "\n### Response:", "\n### Input:"]),
        ("Metharme", ["</s>", "<|user|>", "<|model|>"]),
        ("Mistral V1", [" [INST] ", " [/INST] ", " [/INST]"]),
        ("Vicuna 1.1", ["USER: ", "ASSISTANT: "]),
        ("DreamGen Role-Play V1 ChatML", ["<|im_start|>", "<|im_start|>text names= Bo", "<|im_start|>text names= Ada"]),
        (
            "simple-proxy-for-tavern",
            [
                "\n### Instruction:",
                "\n#### Bo:",
                "\n### Response:",
                "\n#### Ada:",
                "\n### Response (2 paragraphs, engaging, natural):",
            ],
        ),
        ("Story", []),
    ],
)
def test_an_answer_ends_where_it_does_there(name: str, stops: list[str]) -> None:
    found = from_table(read_preset(written(PRESETS[name])).text).stop
    assert [named(one, NAMES) for one in found] == stops
    alone = from_table(read_preset(written(PRESETS[name], sequences_as_stop_strings=False)).text).stop
    cut = PRESETS[name].get("stop_sequence", "").strip()
    assert {one.strip() for one in alone} == ({cut} if cut else set())


@pytest.mark.parametrize(
    ("more", "named_there"),
    [
        ({"user_alignment_message": BEGIN}, ("user_alignment_message",)),
        ({"activation_regex": "/phi/i", "skip_examples": True}, ("activation_regex", "skip_examples")),
        ({"last_system_sequence": "S:"}, ("last_system_sequence",)),
        ({"something_new": "x", "nothing_new": ""}, ("something_new",)),
        ({"input_sequence": "{{random::a::b}} {{user}}{{newline}}"}, ("{{random}}",)),
        ({"input_sequence": "{{char}}", "macro": False}, ("macro",)),
        ({"macro": False, "bind_to_context": True, "names_force_groups": True}, ()),
        ({"names_behavior": "force", "input_sequence": "{{[INPUT]}}"}, ()),
    ],
)
def test_what_is_not_followed_is_named(more: dict[str, Any], named_there: tuple[str, ...]) -> None:
    assert read_preset(written({"output_sequence": "A:"}, **more)).left_out == named_there


def test_a_separator_of_files_before_1_12_stands_behind_answers() -> None:
    preset = {
        "input_sequence": "U:",
        "output_sequence": "A:",
        "separator_sequence": "</s>",
        "wrap": True,
        "macro": True,
    }
    assert made(json.dumps(preset)) == "U:\nHi\nA:\nYo</s>U:\nSo?\nA:\nFine.</s>U:\nGo on.\nA:\n"

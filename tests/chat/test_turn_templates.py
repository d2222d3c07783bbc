"""`turn_template` files of text-generation-webui, held against that program's rule of 2023 for what it sends.

The rule, as its `modules/chat.py` had it (instruct mode): the context, where `<|system-message|>` is the system prompt
given or the file's own; then for each turn what stands up to `<|bot|>` with the question in it, and the rest with the
answer; at the end the rest's beginning without its last spaces. `<|round|>` counts turns from 0.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from exlchat.chat.prompt.formats.presets import PresetError, read_preset
from exlchat.chat.prompt.formats.table import from_table
from exlchat.chat.prompt_format import PromptFormat


class File(NamedTuple):
    """Keys of a file. Long contexts are cut in the middle; how they begin and end is as it was."""

    user: str
    bot: str
    turn: str
    context: str = ""
    system: str | None = None


S = "<|system-message|>"
COLON = "<|user|> <|user-message|>\n<|bot|> <|bot-message|>\n"
TIGHT = "<|user|> <|user-message|>\n<|bot|><|bot-message|>\n"
BLANK = "<|user|> <|user-message|>\n\n<|bot|> <|bot-message|>\n\n"
CLOSED = "<|user|> <|user-message|>\n<|bot|> <|bot-message|></s>\n"
LINES = "<|user|>\n<|user-message|>\n\n<|bot|>\n<|bot-message|>\n\n"
JOINED = "<|user|><|user-message|><|bot|><|bot-message|>"
CHATML = "<|im_start|><|user|>\n<|user-message|><|im_end|>\n<|im_start|><|bot|>\n<|bot-message|><|im_end|>\n"
CHAT = "A chat between a curious user and an artificial intelligence assistant."
FILES = {
    "Airoboros-v1.2": File("USER:", "ASSISTANT:", COLON, "A chat between a curious user and an assistant.\n"),
    "Alpaca": File("### Instruction:", "### Response:", LINES, f"{S}\n\n", "Below is an instruction."),
    "Alpaca, before": File("### Instruction:", "### Response:", LINES, "Below is an instruction.\n\n"),
    "Bactrian": File("### Input:", "### Output:", LINES),
    "Baichuan Chat": File("<reserved_102>", "<reserved_103>", f"{JOINED}</s>"),
    "Baize": File(
        "[|Human|]",
        "[|AI|]",
        "<|user|><|user-message|>\n<|bot|><|bot-message|>\n",
        "The following is a conversation.\n[|Human|]Hello!\n[|AI|]Hi!\n",
    ),
    "Bluemoon": File("LEAD:", "ASSOCIATE:", CLOSED, f"{S}\n", "A transcript of a roleplay."),
    "ChatGLM": File("[Round <|round|>]\n问：", "答：", "<|user|><|user-message|>\n<|bot|><|bot-message|>\n"),
    "ChatML": File("user", "assistant", CHATML, f"<|im_start|>system\n{S}<|im_end|>\n", ""),
    "ChatML, before": File("user", "assistant", CHATML, "<|im_start|>system\n<|im_end|>\n"),
    "Chinese-Vicuna-Chat": File(
        "User:",
        "Assistant:",
        "<|user|><|user-message|>\n\n<|bot|><|bot-message|>\n\n",
        "The following is a conversation between an AI assistant called Assistant and a human user called User.\n\n",
    ),
    "Galactica": File("Question:", "Answer:", BLANK),
    "Galactica Cite": File("", "[START_REF]", "<|user-message|> <|bot|><|bot-message|>\n\n", "", ""),
    "Galactica Finetuned": File("<question>", "<answer>", JOINED, "", ""),
    "Galactica Q": File("Q:", "A:", BLANK),
    "Galactica Summary": File("", "TLDR:", "<|user-message|>\n\n<|bot|><|bot-message|>\n\n", "", ""),
    "Galactica Work": File("Question:", "<work>", "<|user|> <|user-message|>\n\n<|bot|><|bot-message|>\n\n"),
    "Galactica v2": File("<human>", "<bot>", JOINED, "<prefix>You are a helpful chatbot name Stan</prefix>"),
    "Gorilla": File("###USER:", "###ASSISTANT:", CLOSED),
    "Guanaco non-chat": File("### Instruction:", "### Response:", LINES),
    "Guanaco-QLoRA": File("### Human:", "### Assistant:", CLOSED),
    "H2O-human_bot": File("<human>:", "<bot>:", TIGHT),
    "H2O-prompt_answer": File(
        "<|prompt|>", "<|answer|>", "<|user|><|user-message|><|endoftext|><|bot|><|bot-message|><|endoftext|>"
    ),
    "Hippogriff": File("USER:", "ASSISTANT:", CLOSED, "You are a helpful assistant\n"),
    "INCITE-Chat": File("<human>:", "<bot>:", TIGHT, "", ""),
    "INCITE-Instruct": File("Q:", "A:", TIGHT, "", ""),
    "InternLM": File("<User>:", "<Bot>:", "<|user|><|user-message|><eoh>\n<|bot|><|bot-message|><eoa>\n"),
    "KoAlpaca": File("### 질문:", "### 답변:", "<|user|> <|user-message|>\n\n<|bot|><|bot-message|>\n\n"),
    "Koala": File(
        "USER:", "GPT:", "<|user|> <|user-message|> <|bot|><|bot-message|></s>", "BEGINNING OF CONVERSATION: "
    ),
    "LLaVA": File(
        "### Human",
        "### Assistant",
        "<|user|>\n<|user-message|>\n<|bot|>\n<|bot-message|>\n",
        "You are LLaVA.\n### Human: \nHi!\n### Assistant: \nHi there! How can I help you today?\n",
    ),
    "LLaVA-v1": File("USER:", "ASSISTANT:", CLOSED, f"{CHAT}\n\n"),
    "Llama-v2": File(
        "",
        "",
        "<|user|><|user-message|> [/INST] <|bot|><|bot-message|> </s><s>[INST] ",
        f"[INST] <<SYS>>\n{S}\n<</SYS>>\n\n",
        "Answer the questions.",
    ),
    "Llama-v2, before": File(
        "",
        "",
        "<|user|><|user-message|> [/INST] <|bot|><|bot-message|> [INST] ",
        "[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant.\n<</SYS>>\n",
    ),
    "MOSS": File(
        "<|Human|>:",
        "<|MOSS|>:",
        "<|user|> <|user-message|><eoh>\n<|bot|> <|bot-message|><eom>\n",
        "You are an AI assistant whose name is MOSS.\nCapabilities and tools that MOSS can possess.\n",
    ),
    "MPT-Chat": File(
        "user", "assistant", CHATML, "<|im_start|>system\n- You are a helpful assistant chatbot.<|im_end|>\n"
    ),
    "Manticore Chat": File("USER:", "ASSISTANT:", TIGHT),
    "Metharme": File("<|user|>", "<|model|>", JOINED, "<|system|>"),
    "Minotaur": File("USER:", "ASSISTANT:", TIGHT, "", ""),
    "Mistral": File("", "", "[INST] <|user|><|user-message|> [/INST]<|bot|><|bot-message|></s> "),
    "NewHope": File(
        "### Instruction:",
        "### Response:",
        "<|user|>\n<|user-message|>\n\n<|bot|>\n<|bot-message|></s><s> ",
        " ",
    ),
    "Open Assistant": File(
        "<|prompter|>", "<|assistant|>", "<|user|><|user-message|><|endoftext|><|bot|><|bot-message|><|endoftext|>"
    ),
    "OpenBuddy": File(
        "User:",
        "Assistant:",
        COLON,
        "Consider a conversation between User (a human) and Assistant (named Buddy).\n\nUser: Hi.\nAssistant: Hi.\n",
    ),
    "OpenChat": File(
        "GPT4 User:",
        "GPT4 Assistant:",
        "<|user|> <|user-message|><|end_of_turn|><|bot|> <|bot-message|><|end_of_turn|>",
    ),
    "OpenOrca-Platypus2": File("### Instruction:", "### Response:", BLANK),
    "Orca Mini": File("### User:", "### Response:", LINES, "### System:\nYou are an AI assistant.\n\n"),
    "Orca-Vicuna": File("USER:", "ASSISTANT:", CLOSED, f"SYSTEM: {S}\n", ""),
    "RWKV-Raven": File("Bob:", "Alice:", BLANK, "", ""),
    "Samantha": File("USER:", "ASSISTANT:", CLOSED, "You are Samantha, a sentient AI.\n\n"),
    "StableBeluga2": File("### User:", "### Assistant:", LINES, f"### System:\n{S}\n\n", "This is a system prompt."),
    "StableLM": File("<|USER|>", "<|ASSISTANT|>", JOINED, "<|SYSTEM|># StableLM Tuned (Alpha version)\n- It writes.\n"),
    "StableVicuna": File(
        "### Human:",
        "### Assistant:",
        "<|user|> <|user-message|>\n<|bot|><|bot-message|>\n\n",
        "### Assistant: I am StableVicuna. I am here to chat!\n\n",
    ),
    "Starchat-Beta": File(
        "<|user|>",
        "<|assistant|>",
        "<|user|> <|user-message|><|end|>\n<|bot|> <|bot-message|><|end|>\n",
        "<|system|>",
    ),
    "Synthia": File("USER:", "ASSISTANT:", CLOSED, f"SYSTEM: {S}\n", "Answer the question thoughtfully."),
    "Tulu": File("<|user|>", "<|assistant|>", "<|user|>\n<|user-message|>\n<|bot|>\n<|bot-message|>\n"),
    "Vicuna-v0": File("### Human:", "### Assistant:", COLON, "A chat between a human and an assistant.\n\n"),
    "Vicuna-v1.1": File(
        "USER:", "ASSISTANT:", "<|user|> <|user-message|>\n<|bot|> <|bot-message|></s>\n", f"{S}\n\n", CHAT
    ),
    # It stood in single quotes in its file, so that YAML leaves the backslashes.
    "VicunaLlama2": File("USER", "ASSISTANT", r"<|user|>: <|user-message|>\n<|bot|>: <|bot-message|>\n", CHAT),
    "Vigogne-Chat": File(
        "<|USER|>:",
        "<|ASSISTANT|>:",
        "\n<|user|> <|user-message|>\n<|bot|> <|bot-message|>",
        "Below is a conversation between a user and an AI assistant named Vigogne.\n",
    ),
    "Wizard-Mega": File("### Instruction:", "### Assistant:", BLANK),
    "Wizard-Mega ShareGPT": File("USER:", "ASSISTANT:", "<|user|> <|user-message|> <|bot|> <|bot-message|></s>"),
    "WizardLM": File("", "### Response:", "<|user-message|>\n\n<|bot|><|bot-message|>\n\n</s>"),
    "Xgen": File("### Human:", "### Assistant:", "<|user|><|user-message|>\n<|bot|><|bot-message|>\n", f"{CHAT}\n\n"),
    "Ziya": File("<human>:", "<bot>:", "<|user|><|user-message|>\n<|bot|><|bot-message|>\n", "", ""),
}
TALK = [("Who are you?", "A language model."), ("What can you do?", "Talk."), ("Go on.", None)]


def written(file: File) -> str:
    """As JSON, which is YAML too."""
    keys = {"user": file.user, "bot": file.bot, "turn_template": file.turn, "context": file.context}
    return json.dumps(keys if file.system is None else {**keys, "system_message": file.system}, ensure_ascii=False)


def sent(file: File, system: str | None = None) -> str:
    """By the rule."""
    question, answer = file.turn.replace(r"\n", "\n").split("<|bot|>")
    prompt = file.context.replace(S, file.system or "" if system is None else system)
    for turn, (asked, said) in enumerate(TALK):
        prompt += (
            question.replace("<|user|>", file.user).replace("<|round|>", str(turn)).replace("<|user-message|>", asked)
        )
        before, after = (file.bot + answer).split("<|bot-message|>")
        prompt += before.rstrip(" ") if said is None else before + said + after
    return prompt


def made(text: str, system: str | None = None) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    for asked, said in TALK:
        messages += [{"role": "user", "content": asked}]
        messages += [{"role": "assistant", "content": said}] if said else []
    return PromptFormat("x", from_table(read_preset(text).text).source).render(messages)


def test_there_are_sixty_of_them() -> None:
    assert len(FILES) >= 60


@pytest.mark.parametrize("name", FILES)
def test_a_turn_template_says_what_that_program_sends(name: str) -> None:
    assert made(written(FILES[name])) == sent(FILES[name])


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if S in file.context])
def test_a_system_prompt_stands_where_the_file_has_its_place(name: str) -> None:
    assert made(written(FILES[name]), "Be brief.") == sent(FILES[name], "Be brief.")
    assert read_preset(written(FILES[name])).notes == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Llama-v2",
            "[INST] <<SYS>>\nAnswer the questions.\n<</SYS>>\n\nWho are you? [/INST] A language model. </s><s>[INST] "
            "What can you do? [/INST] Talk. </s><s>[INST] Go on. [/INST] ",
        ),
        (
            "WizardLM",
            "Who are you?\n\n### Response:A language model.\n\n</s>What can you do?\n\n### Response:Talk.\n\n</s>"
            "Go on.\n\n### Response:",
        ),
        (
            "Galactica Cite",
            "Who are you? [START_REF]A language model.\n\nWhat can you do? [START_REF]Talk.\n\nGo on. [START_REF]",
        ),
        (
            "ChatGLM",
            "[Round 0]\n问：Who are you?\n答：A language model.\n[Round 1]\n问：What can you do?\n答：Talk.\n"
            "[Round 2]\n问：Go on.\n答：",
        ),
        (
            "VicunaLlama2",
            "A chat between a curious user and an artificial intelligence assistant.USER: Who are you?\n"
            "ASSISTANT: A language model.\nUSER: What can you do?\nASSISTANT: Talk.\nUSER: Go on.\nASSISTANT:",
        ),
        (
            "Koala",
            "BEGINNING OF CONVERSATION: USER: Who are you? GPT:A language model.</s>USER: What can you do? GPT:"
            "Talk.</s>USER: Go on. GPT:",
        ),
        (
            "ChatML, before",
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
            "A language model.<|im_end|>\n<|im_start|>user\nWhat can you do?<|im_end|>\n<|im_start|>assistant\n"
            "Talk.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_what_some_of_them_send_written_out(name: str, expected: str) -> None:
    assert made(written(FILES[name])) == expected == sent(FILES[name])


def test_a_system_prompt_without_a_place_is_said_and_breaks_no_marks() -> None:
    plain, marked = (read_preset(written(FILES[name])) for name in ("Samantha", "Llama-v2, before"))
    assert plain.notes == ("context has no <|system-message|>: a system prompt stands in the place of its words",)
    assert made(written(FILES["Samantha"]), "Be brief.").startswith("Be brief.\n\nUSER: Who are you?\n")
    assert marked.notes == ("context has marks and no <|system-message|>: a system prompt stands behind it",)
    assert made(written(FILES["Llama-v2, before"]), "Be brief.").startswith(
        "[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant.\n<</SYS>>\nBe brief.\nWho are you? [/INST]"
    )


def test_its_first_files_have_other_words() -> None:
    # The names of April 2023, and the marks of a few days before.
    keys = {"your_name": "### Human:", "name": "### Assistant:", "context": "A chat.\n\n"}
    now = written(File("### Human:", "### Assistant:", COLON, "A chat.\n\n"))
    for turn in (COLON, "<user> <user-message>\n<bot> <bot-message>\n"):
        assert made(json.dumps({**keys, "turn_template": turn})) == made(now)
    # An empty one was as good as none.
    lines = "<|user|>\n<|user-message|>\n<|bot|>\n<|bot-message|>\n"
    assert made(json.dumps({**keys, "turn_template": ""})) == made(json.dumps({**keys, "turn_template": lines}))


def test_names_lose_the_white_space_around_them() -> None:
    spaced = File(" USER: ", "ASSISTANT:\n", COLON)
    assert made(written(spaced)) == sent(File("USER:", "ASSISTANT:", COLON))


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        # What stands before an answer ends one too, as what stands before the next question.
        ("Vicuna-v1.1", ["\nASSISTANT:", "</s>\nUSER:"]),
        ("Alpaca", ["\n\n### Response:", "\n\n### Instruction:"]),
        ("WizardLM", ["\n\n### Response:", "\n\n</s>"]),
        ("VicunaLlama2", ["\nASSISTANT", "\nUSER"]),
        ("ChatGLM", ["\n答：", "\n[Round"]),
        ("Mistral", [" [/INST]", "</s>"]),
    ],
)
def test_an_answer_ends_where_it_does_there(name: str, stops: list[str]) -> None:
    assert list(from_table(read_preset(written(FILES[name])).text).stop) == stops


@pytest.mark.parametrize("turn", ["<|user-message|>", "<|bot-message|><|bot|><|user-message|>", "x"])
def test_a_turn_without_a_place_for_both_is_refused(turn: str) -> None:
    with pytest.raises(PresetError, match=r"lacks <\|user-message\|> or <\|bot-message\|>"):
        read_preset(json.dumps({"turn_template": turn}))

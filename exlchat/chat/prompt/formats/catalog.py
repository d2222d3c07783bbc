"""The built-in prompt formats, one row each, and which of them a model without a template was most likely made for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exlchat.chat.prompt.thinking import HARMONY, SEED, THINK
from exlchat.llm.thought_splitter import ThinkingMarks


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One format.

    Args:
        name: of its file, without `.jinja`.
        about: what it looks like, in a line.
        models: those it is for, in a line.
        stop: what ends an answer.
        thinking: how thoughts are marked, where its models think.
        keeps_thinking: whether later prompts show the thoughts of earlier answers.
        tokens: added tokens, all of which a model of this format has; none where tokens do not tell.
        architecture: how the name of its architecture begins, where that tells; with no tokens it tells alone.
        vocab_size: of its models, where the architecture has models of other formats too.
    """

    name: str
    about: str
    models: str
    stop: tuple[str, ...] = ()
    thinking: ThinkingMarks | None = None
    keeps_thinking: bool = False
    tokens: tuple[str, ...] = ()
    architecture: str = ""
    vocab_size: int = 0

    @property
    def source(self) -> str:
        return (Path(__file__).parent / f"{self.name}.jinja").read_text(encoding="utf-8")

    def fits(self, tokens: set[str], architecture: str, vocab_size: int) -> bool:
        """Whether a model without a template was most likely made for it."""
        if not (self.tokens or self.architecture):
            return False
        known = tokens.issuperset(self.tokens) and architecture.startswith(self.architecture)
        return known and self.vocab_size in (0, vocab_size)


PLAIN = "plain"

FORMATS = (
    BuiltIn(
        "qwen-3",
        "ChatML that knows thoughts; enable_thinking = false leaves them out",
        "Qwen3",
        ("<|im_end|>",),
        THINK,
        tokens=("<|im_start|>", "<|im_end|>"),
        architecture="Qwen3",
    ),
    BuiltIn(
        "smollm-3",
        "ChatML with a system turn that has the date and the mode, /think or /no_think",
        "SmolLM3",
        ("<|im_end|>",),
        THINK,
        tokens=("<|im_start|>", "<|im_end|>"),
        architecture="SmolLM3",
    ),
    BuiltIn("olmo-2", "<|user|> and <|assistant|> as plain text", "OLMo 2, Tulu 3", architecture="Olmo2"),
    BuiltIn(
        "phi-4",
        "like ChatML, with <|im_sep|> behind the role and no line breaks",
        "Phi-4 (14B)",
        ("<|im_end|>",),
        tokens=("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    ),
    BuiltIn(
        "chatml",
        "<|im_start|>role, text, <|im_end|>",
        "Qwen 1.5 to 2.5, Yi, InternLM, Hermes, Dolphin and many fine-tunes",
        ("<|im_end|>",),
        THINK,
        tokens=("<|im_start|>", "<|im_end|>"),
    ),
    BuiltIn("plain", "User: and Assistant: with blank lines between", "models that know no format", ("\nUser:",)),
    BuiltIn("log", "Name: text, a line each; user_name and assistant_name name them", "base models", ("\n{{user}}:",)),
    BuiltIn(
        "llama-3.1",
        "that of Llama 3 with a system turn that is always there and tells dates",
        "Llama 3.1, 3.2 and 3.3",
        ("<|eot_id|>", "<|eom_id|>"),
        tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    ),
    BuiltIn(
        "llama-3",
        "<|start_header_id|>role<|end_header_id|>, text, <|eot_id|>",
        "Llama 3 and its fine-tunes",
        ("<|eot_id|>",),
        THINK,
        tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    BuiltIn(
        "llama-2",
        "[INST] and <<SYS>>, BOS before every turn",
        "Llama 2 chat",
        architecture="LlamaForCausalLM",
        vocab_size=32000,
    ),
    BuiltIn(
        "mistral-tekken",
        "[INST] and [SYSTEM_PROMPT] as tokens, no spaces; no system text of its own",
        "Mistral Small 3 and later (tokenizer v7)",
        tokens=("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]"),
    ),
    BuiltIn(
        "mistral",
        "[INST] as a token, system text in the last turn",
        "Mistral 7B v0.3, Mixtral 8x22B, Codestral (tokenizer v3)",
        tokens=("[INST]", "[/INST]"),
    ),
    BuiltIn(
        "mistral-v1",
        "[INST] as plain text",
        "Mistral 7B v0.1 and v0.2, Mixtral 8x7B (tokenizer v1)",
        architecture="MistralForCausalLM",
        vocab_size=32000,
    ),
    BuiltIn(
        "gemma-3",
        "<start_of_turn>, system text in the first turn as it is",
        "Gemma 3",
        ("<end_of_turn>",),
        tokens=("<start_of_turn>", "<end_of_turn>"),
        architecture="Gemma3",
    ),
    BuiltIn(
        "gemma",
        "<start_of_turn>, system text in the first turn, stripped",
        "Gemma and Gemma 2, which know no system text",
        ("<end_of_turn>",),
        tokens=("<start_of_turn>", "<end_of_turn>"),
    ),
    BuiltIn(
        "glm-4.5",
        "<|user|> and <|assistant|> behind [gMASK]<sop>, with thoughts",
        "GLM-4.5 and 4.6",
        ("<|user|>", "<|observation|>"),
        THINK,
        tokens=("[gMASK]", "<sop>", "<|user|>", "<think>"),
    ),
    BuiltIn(
        "glm-4",
        "<|user|> and <|assistant|> behind [gMASK]<sop>, system text first",
        "GLM-4",
        ("<|user|>", "<|observation|>"),
        tokens=("[gMASK]", "<sop>", "<|user|>"),
    ),
    BuiltIn(
        "phi-3",
        "<|user|>, text, <|end|>",
        "Phi-3 and Phi-3.5",
        ("<|end|>",),
        tokens=("<|user|>", "<|assistant|>", "<|end|>"),
    ),
    BuiltIn(
        "command-r",
        "<|START_OF_TURN_TOKEN|> and a token for each role",
        "Command R and R+, Aya",
        ("<|END_OF_TURN_TOKEN|>",),
        tokens=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    ),
    BuiltIn(
        "deepseek-r1",
        "<｜User｜> and <｜Assistant｜>; the prompt opens the thoughts",
        "DeepSeek R1 and its distilled models",
        ("<｜end▁of▁sentence｜>",),
        THINK,
        tokens=("<｜User｜>", "<｜Assistant｜>"),
    ),
    BuiltIn("deepseek-v2", "User: and Assistant: with EOS behind answers", "DeepSeek V2 and DeepSeek LLM"),
    BuiltIn(
        "granite-3",
        "<|start_of_role|>role<|end_of_role|>, text, <|end_of_text|>; today's date without a system prompt",
        "Granite 3",
        ("<|end_of_text|>",),
        THINK,
        tokens=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    BuiltIn(
        "gpt-oss",
        "harmony: an answer has channels, one of them for thoughts; reasoning_effort says how long they are",
        "gpt-oss",
        ("<|return|>", "<|call|>"),
        HARMONY,
        tokens=("<|start|>", "<|channel|>", "<|message|>", "<|return|>"),
    ),
    BuiltIn(
        "seed-oss",
        "<seed:bos>role, text, <seed:eos>, thoughts between tokens",
        "Seed-OSS",
        ("<seed:eos>",),
        SEED,
        keeps_thinking=True,
        tokens=("<seed:bos>", "<seed:eos>"),
    ),
    BuiltIn(
        "exaone-3.5",
        "[|user|] and [|assistant|], [|endofturn|] behind answers",
        "EXAONE 3 and 3.5",
        ("[|endofturn|]",),
        tokens=("[|user|]", "[|assistant|]", "[|endofturn|]"),
    ),
    BuiltIn(
        "openchat",
        "GPT4 Correct User: text<|end_of_turn|>",
        "OpenChat 3.5 and 3.6, Starling",
        ("<|end_of_turn|>",),
        tokens=("<|end_of_turn|>",),
    ),
    BuiltIn("zephyr", "<|user|>, text, EOS", "Zephyr, TinyLlama chat, StableLM Zephyr"),
    BuiltIn("starchat", "<|user|>, text, <|end|> behind an empty system turn", "StarChat beta", ("<|end|>",)),
    BuiltIn("vicuna", "USER: and ASSISTANT: in one line behind a sentence about both", "Vicuna 1.1 and 1.5, Wizard"),
    BuiltIn("alpaca", "### Instruction: and ### Response:", "Alpaca and many merges", ("### Instruction:",)),
)
"""All of them; `guess` takes the first that fits."""


def guess(tokens: set[str], architecture: str, vocab_size: int) -> tuple[str, str]:
    """The format that a model without a template was most likely made for, and why, as the end of a sentence.

    Args:
        tokens: texts of its added tokens.
        architecture: as `config.json` names it.
        vocab_size: rows of its embedding.
    """
    found = next((one for one in FORMATS if one.fits(tokens, architecture, vocab_size)), None)
    if found is None:
        return PLAIN, "nothing about it tells of a chat format"
    if found.tokens:
        return found.name, f"its tokens, as {found.tokens[0]}, are those of {found.name}"
    return found.name, f"{architecture} with {vocab_size:,} tokens is mostly {found.name}"

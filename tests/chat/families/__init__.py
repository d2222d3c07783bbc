"""Chat templates of well-known model families, a Jinja file each beside this one.

They are written down from memory of what the families ship, none checked against its original: the marks of a turn,
where BOS stands, what is stripped, refused or put in place of a missing system message, with the constructs that each
uses. Short ones follow their originals closely; long texts and most of what is about tools are left out. `nemotron` is
only in the manner of its family. What is compared is two ways to run the same template, so none has to be exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def source(name: str) -> str:
    """The template of one family."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.jinja")))

THINKING = ({"enable_thinking": True}, {"enable_thinking": False})
VARIABLES: dict[str, tuple[dict[str, Any], ...]] = {
    "llama-3.1": ({"date_string": "01 Jan 2025"}, {"builtin_tools": ["code_interpreter", "search"]}),
    "llama-3.2": ({"date_string": "01 Jan 2025"},),
    "qwen-3": THINKING,
    "glm-4.5": THINKING,
    "smollm-3": THINKING,
    "exaone-4": (*THINKING, {"skip_think": False}),
    "granite-3": ({"thinking": True}, {"thinking": True, "controls": {"length": "short"}}),
    "command-r7b": ({"reasoning": False}, {"safety_mode": "strict"}),
    "seed-oss": ({"thinking_budget": 0}, {"thinking_budget": 600}, {"thinking_budget": 99_999}),
    "gpt-oss": ({"reasoning_effort": "high"}, {"model_identity": "You are a test."}),
    "deepseek-v3.1": ({"thinking": True}, {"thinking": False}),
}
"""What a family's template can be told beside the messages, thinking on and off above all."""

END: dict[str, str] = {
    "llama-2": "</s>",
    "llama-3": "<|eot_id|>",
    "llama-3.1": "<|eot_id|>",
    "llama-3.2": "<|eot_id|>",
    "mistral-v1": "</s>",
    "mistral-v3": "</s>",
    "mistral-tekken": "</s>",
    "mixtral": "</s>",
    "gemma-2": "<end_of_turn>",
    "gemma-3": "<end_of_turn>",
    "phi-3": "<|end|>",
    "phi-3.5": "<|end|>",
    "phi-4": "<|im_end|>",
    "phi-4-mini": "<|end|>",
    "qwen-2": "<|im_end|>",
    "qwen-2.5": "<|im_end|>",
    "qwen-3": "<|im_end|>",
    "smollm-3": "<|im_end|>",
    "internlm-2": "<|im_end|>",
    "command-r": "<|END_OF_TURN_TOKEN|>",
    "granite-3": "<|end_of_text|>",
    "glm-4": "<|user|>",
    "glm-4.5": "<|user|>",
    "olmo-2": "</s>",
    "exaone-3.5": "[|endofturn|]",
    "exaone-4": "[|endofturn|]",
    "seed-oss": "<seed:eos>",
    "gpt-oss": "<|return|>",
    "orion": "</s>",
    "deepseek-v2": "</s>",
    "deepseek-r1": "<｜end▁of▁sentence｜>",
    "deepseek-v3.1": "<｜end▁of▁sentence｜>",
    "vicuna": "</s>",
    "zephyr": "</s>",
    "starchat": "<|end|>",
}
"""The token that ends an answer of the family."""

MARKS = (
    *dict.fromkeys(END.values()),
    *("<s>", "<|im_start|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]", "<sop>"),
    *(
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "<start_of_turn>",
        "<|system|>",
        "<|assistant|>",
        "<|START_OF_TURN_TOKEN|>",
    ),
    *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "[gMASK]"),
    *("<|start_of_role|>", "<|end_of_role|>", "[|system|]", "[|user|]", "[|assistant|]", "<seed:bos>", "<seed:think>"),
    *("</seed:think>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<｜User｜>", "<｜Assistant｜>"),
)
"""Tokens of all families together."""

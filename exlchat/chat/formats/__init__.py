"""Prompt formats that come with exlchat: a Jinja file each in this folder, and here how a model of each is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One format.

    Args:
        name: of its file, without `.jinja`.
        stop: what ends an answer.
        tokens: added tokens, all of which only models of this format have; none where that cannot be told.
        architecture, vocab_size: of a model of this format whose tokens do not tell.
    """

    name: str
    stop: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    architecture: str = ""
    vocab_size: int = 0

    @property
    def source(self) -> str:
        """Its Jinja."""
        return (Path(__file__).parent / f"{self.name}.jinja").read_text(encoding="utf-8")


FORMATS = (
    BuiltIn("chatml", ("<|im_end|>",), ("<|im_start|>", "<|im_end|>")),
    BuiltIn("plain", ("\nUser:",)),
    BuiltIn("llama-3", ("<|eot_id|>",), ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    BuiltIn("llama-2", architecture="LlamaForCausalLM", vocab_size=32000),
    BuiltIn("mistral", tokens=("[INST]", "[/INST]")),
    BuiltIn("mistral-v1", architecture="MistralForCausalLM", vocab_size=32000),
    BuiltIn("gemma", ("<end_of_turn>",), ("<start_of_turn>", "<end_of_turn>")),
    BuiltIn("phi-3", ("<|end|>",), ("<|user|>", "<|assistant|>", "<|end|>")),
    BuiltIn(
        "command-r",
        ("<|END_OF_TURN_TOKEN|>",),
        ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    ),
)
"""All of them; `guess` takes the first that fits."""

PLAIN = "plain"


def guess(tokens: set[str], architecture: str, vocab_size: int) -> tuple[str, str]:
    """The format that a model without a template was most likely made for, and why, as the end of a sentence.

    Args:
        tokens: texts of its added tokens.
        architecture: as `config.json` names it.
        vocab_size: rows of its embedding.
    """
    for one in FORMATS:
        if one.tokens and tokens.issuperset(one.tokens):
            return one.name, f"its tokens, as {one.tokens[0]}, are those of {one.name}"
    for one in FORMATS:
        if one.architecture and (one.architecture, one.vocab_size) == (architecture, vocab_size):
            return one.name, f"{architecture} with {vocab_size:,} tokens is mostly {one.name}"
    return PLAIN, "nothing about it tells of a chat format"

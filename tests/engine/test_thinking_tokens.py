"""Special tokens that mark thoughts have a text; all others have none."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken

from exlchat.chat.prompt.thinking import HARMONY, MAGISTRAL, split
from exlchat.engine.text.stream import TextStream
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.chat.scripted_engine import byte_level_tokenizer


def opened(folder: Path, *special: str) -> Tokenizer:
    fast = byte_level_tokenizer()
    fast.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer_config.json").write_text("{}")
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    return Tokenizer(Checkpoint(folder), 1000)


def streamed(tokenizer: Tokenizer, text: str) -> str:
    stream = TextStream(tokenizer.decode)
    return "".join(stream.push(token) for token in tokenizer.encode(text)) + stream.finish()


def test_the_channels_of_harmony_are_told_apart(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
    said = (
        "<|channel|>analysis<|message|>The user ä 😀 says hi.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello there"
    )
    assert tokenizer.decode(tokenizer.encode(said + "<|return|>")) == said
    assert streamed(tokenizer, said) == said
    parts = split(streamed(tokenizer, said), HARMONY)
    assert (parts.thinking, parts.answer) == ("The user ä 😀 says hi.", "Hello there")


def test_a_mark_that_is_a_token(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, "[THINK]", "[/THINK]", "<|end|>")
    said = "[THINK]well[/THINK]Hello <|im_end|>you<|end|>"
    assert tokenizer.decode(tokenizer.encode(said)) == "[THINK]well[/THINK]Hello you"
    assert split(streamed(tokenizer, said), MAGISTRAL).answer == "Hello you"
    assert tokenizer.decode(tokenizer.encode(said), special=True) == said

"""Small random models on disk, made by `transformers`, with a byte-level tokenizer trained on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
_TEXT = (
    "A river runs past the old mill, and the miller counts his sacks: 1, 2, 3. "
    "def add(a, b):\n    return a + b\n\nZwölf Boxkämpfer jagen Viktor über den Sylter Deich. 漢字とかな。 😀👍🏽 "
)


def save_tokenizer(path: Path, vocab_size: int = 384) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` with at most `vocab_size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def save_random_llama(path: Path, *, seed: int = 0, shard_size: str = "50GB", **config: Any) -> LlamaForCausalLM:
    """Writes a whole model directory and returns the float32 model that `transformers` runs.

    Without arguments: two layers, 64 wide, 4 heads over 2 key-value heads.
    """
    sizes: dict[str, Any] = {
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    model.save_pretrained(path, max_shard_size=shard_size)
    save_tokenizer(path)
    return model


def edit_json(file: Path, **changes: Any) -> None:
    """Sets keys of a JSON object; `None` removes one."""
    content = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    file.write_text(json.dumps(content))

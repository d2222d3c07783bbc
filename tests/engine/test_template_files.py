"""Which of a model's files its chat templates come from, against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from exlchat.engine import load
from exlchat.engine.text.template_files import read_templates
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError
from tests.random_models import save_random_llama, save_tokenizer

NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def put(folder: Path, name: str, content: Any) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    old = json.loads(file.read_text()) if file.suffix == ".json" and file.is_file() else {}
    file.write_text(json.dumps({**old, "chat_template": content}) if file.suffix == ".json" else content)


CONFIG, OWN, PROCESSOR = "tokenizer_config.json", "chat_template.jinja", "chat_template.json"
MORE = "additional_chat_templates/rag.jinja"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, {}),
        ({CONFIG: "C"}, {"default": "C"}),
        ({CONFIG: NAMED}, {"default": "D", "tool_use": "T", "rag": "R"}),
        ({CONFIG: NAMED[1:]}, {"tool_use": "T", "rag": "R"}),
        ({CONFIG: "C", OWN: "O"}, {"default": "O"}),
        ({CONFIG: NAMED, OWN: "O"}, {"default": "O"}),
        ({OWN: "O", MORE: "M"}, {"default": "O", "rag": "M"}),
        ({CONFIG: "C", MORE: "M"}, {"rag": "M"}),
        ({PROCESSOR: "P", CONFIG: "C"}, {"default": "P"}),
        ({PROCESSOR: {"default": "P", "rag": "R"}}, {"default": "P", "rag": "R"}),
        ({PROCESSOR: "P", OWN: "O"}, {"default": "O"}),
    ],
)
def test_where_templates_come_from(files: dict[str, Any], found: dict[str, str], folder: Path) -> None:
    for name, content in files.items():
        put(folder, name, content)
    assert read_templates(Checkpoint(folder)) == found
    if PROCESSOR not in files:
        # transformers reads that one with a processor alone, which a text model does not have.
        peer = PreTrainedTokenizerFast.from_pretrained(folder).chat_template
        assert (peer if isinstance(peer, dict) else {"default": peer} if peer else {}) == found


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (CONFIG, 3),
        (CONFIG, ["x"]),
        (CONFIG, [{"name": "default", "template": 3}]),
        (CONFIG, [{"template": "x"}]),
        (PROCESSOR, {"default": None}),
    ],
)
def test_a_template_that_is_none(name: str, content: object, folder: Path) -> None:
    put(folder, name, content)
    with pytest.raises(ModelError) as error:
        read_templates(Checkpoint(folder))
    assert f"{name}: chat_template is neither text nor templates by name" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_loaded_model_tells_of_its_templates(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    put(tmp_path, CONFIG, NAMED)
    info = load(tmp_path, device="cpu").info
    assert (info.chat_template, info.named_templates) == ("D", {"tool_use": "T", "rag": "R"})
    assert info.named_tokens["eos_token"] == info.eos_token
    assert set(info.special_tokens) <= set(info.added_tokens)

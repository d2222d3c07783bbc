"""Small models to convert, with a tokenizer that knows every byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from exlchat.engine.bench.random_checkpoint import tokenizer_json
from exlchat.engine.convert.run import Wishes, Written, convert
from tests.engine.family_models import CASES, save_case

TOKENS = 768
CPU = torch.device("cpu")


def save_source(name: str, folder: Path, **changes: object) -> Path:
    """An architecture of the table, its rows as long as its context."""
    case = CASES[name]
    save_case(replace(case, changes={**case.changes, **changes}), folder)
    vocabulary = json.loads((folder / "config.json").read_text()).get("vocab_size", 384)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
    return folder


def converted(source: Path, out: Path, *bits: float, **wishes: object) -> list[Written]:
    wanted = {"tokens": TOKENS, "checked": 512, **wishes}
    return convert(Wishes(source, out, tuple(bits), CPU, **wanted), lambda _: None, lambda _: None)  # type: ignore[arg-type]

"""What the engine makes of a damaged model directory, held against what it should: one line, or the right logits."""

from __future__ import annotations

import gc
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from exlchat.engine import GenerationRequest, ModelError, load
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.decoding import relative_error
from tests.engine.mutations import Mutation, mutated

TEXT = "the old mill: 1, 2, 3 </s>"
# Past every window and threshold of the small models. Positions that follow from the length follow from this one.
TOKENS = 72
IDS = torch.randint(384, (TOKENS,), generator=torch.Generator().manual_seed(5)).tolist()


@dataclass(frozen=True, slots=True)
class Base:
    """An undamaged directory.

    Args:
        folder: where it is.
        floats: the same model in floats, for `transformers`.
        logits: of `IDS`.
        names: of its tensors.
        config: what is in `config.json`, damaged or not -> what `transformers` is given. It may raise anything.
    """

    folder: Path
    floats: Path
    logits: torch.Tensor
    names: frozenset[str]
    config: Callable[[dict[str, Any]], dict[str, Any]]


def base(folder: Path, floats: Path | None = None, config: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Base:
    """Of a directory that the engine can load."""
    checkpoint = Checkpoint(folder)
    names = frozenset(checkpoint.name_in_file(name) for name in checkpoint.names)
    return Base(folder, floats or folder, load(folder, device="cpu", max_seq_len=TOKENS).logits(IDS), names, config)


@contextmanager
def quick_and_small() -> Iterator[None]:
    """Loading collects garbage, and `transformers` leaves a million objects to look through; memory has an end."""
    gc.collect()
    gc.freeze()
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    gc.unfreeze()


def fault(base: Base, mutation: Mutation, place: Path) -> str | None:
    """What is wrong with how the engine takes a damaged directory; `None` if nothing is."""
    folder = mutated(base.folder, mutation, place)
    try:
        engine = load(folder, device="cpu", max_seq_len=TOKENS)
    except ModelError as error:
        return _fault_of_line(str(error), mutation, base.names)
    except BaseException as error:
        return f"raises {type(error).__name__}: {str(error)[:100]}"
    engine.decode(engine.encode(TEXT))
    list(engine.generate(GenerationRequest(engine.encode(TEXT), max_new_tokens=2)))
    found = engine.logits(IDS)
    same = relative_error(found, base.logits)
    if mutation.file != "config.json":
        # Floats of 16 bits are the same model rounded.
        close = same < (2e-2 if "float" in mutation.label else 1e-5)
        return None if close else f"computes something else ({same:.2g})"
    wanted = _by_transformers(base, folder, place.with_name("wanted"))
    if isinstance(wanted, str):
        return None if same < 1e-5 else f"computes something else ({same:.2g}); transformers {wanted}"
    error = relative_error(found, wanted)
    return None if error < 1e-4 else f"is off from transformers by {error:.2g}, from the undamaged model by {same:.2g}"


def _fault_of_line(line: str, mutation: Mutation, names: frozenset[str]) -> str | None:
    if "\n" in line:
        return f"says more than a line: {line!r}"
    if len(line) > 600:
        return f"says {len(line)} characters: {line[:100]}"
    if mutation.file == "config.json" and _is_told_otherwise(line, names):
        return None
    if mutation.file not in line:
        return f"does not name {mutation.file}: {line}"
    # The library that reads the tokenizer says where: line, column and what stands there.
    key, _, part = mutation.thing.rpartition(".")
    named = mutation.file == "tokenizer.json" or (key in line and part in line)
    return None if named else f"does not name {mutation.thing}: {line}"


def _is_told_otherwise(line: str, names: frozenset[str]) -> bool:
    """Whether a line about a key is one about what it means."""
    # A value that is one, but of another model, is told by the first tensor that says otherwise, or is not there.
    if "config.json" in line and ("the tensor " in line or any(_module(name) in line for name in names)):
        return True
    # By this test, of a model that without its key has a shorter one.
    return f"a context of {TOKENS} tokens was asked for" in line


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _by_transformers(base: Base, folder: Path, place: Path) -> torch.Tensor | str:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base.floats, place)
    try:
        config = base.config(json.loads((folder / "config.json").read_text()))
        config.pop("quantization_config", None)
        _whole_as_floats(config, base.config(json.loads((base.folder / "config.json").read_text())))
        (place / "config.json").write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.inference_mode():
            return model(torch.tensor([IDS])).logits[0]
    except Exception as error:
        return f"raises {type(error).__name__}"


def _whole_as_floats(config: dict[str, Any], undamaged: dict[str, Any]) -> None:
    """`transformers` takes no whole numbers for what it calls a float."""
    for key, value in config.items():
        before = undamaged.get(key)
        if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
            config[key] = float(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _whole_as_floats(value, before)

"""Small model directories, and every way of damaging them that the tests try: a key, a tensor, a header, a file, or
something else in a file's place.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.untrusted.no_files import NOT_PLAIN, sparse

INDEX = "model.safetensors.index.json"
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    INDEX,
)
_GONE = object()
_VALUES: dict[str, Any] = {
    "removed": _GONE,
    "text": "wrong",
    "list": [],
    "null": None,
    "negative": -3,
    "zero": 0,
    "huge": 10**12,
    "past every float": 10**400,
    "fraction": 1.5,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "true": True,
    "object": {"a": 1},
}
_READ_INSIDE = (
    "rope_parameters",
    "rope_scaling",
    "full_attention",
    "sliding_attention",
    "quantization_config",
    "text_config",
    "model",
)
_WORDS = ("int16", "float32")
_OTHER_INTEGERS = {
    **dict.fromkeys(("qweight", "qzeros", "g_idx", "q_weight", "q_invperm", "q_scale"), _WORDS),
    "q_groups": ("int32", "float32"),
}
"""Dtypes beside those that no tensor may have, of tensors of integers; any other may be of any floats."""
_NO_NUMBERS = tuple((0, value) for value in (float("nan"), float("inf"), float("-inf")))
_WRONG_VALUES = {
    "scales": _NO_NUMBERS,
    "q_scale_max": _NO_NUMBERS,
    "g_idx": ((0, -1), (0, 1 << 20)),
    "q_invperm": ((0, -1), (0, 1 << 20)),
    "q_groups": tuple((index, value) for index in (0, 1) for value in (0, 7, -1)),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One kind of damage.

    Args:
        label: what was done.
        file: whose fault it is; an error has to name it.
        thing: the key or tensor at fault; empty where it is the file as a whole.
        apply: does it to a copy of a directory.
    """

    label: str
    file: str
    thing: str
    apply: Callable[[Path], None]


def every_mutation(folder: Path, seed: int) -> Iterator[Mutation]:
    """All of one directory."""
    for name in JSON_FILES:
        if (folder / name).is_file():
            yield from _of_json(folder, name)
    if (folder / INDEX).is_file():
        yield from _of_index(folder)
    yield from _of_tensors(folder)
    yield from _of_bytes(folder, random.Random(seed))
    yield from _of_kinds(folder, random.Random(seed))


def mutations_of_the_model(folder: Path) -> Iterator[Mutation]:
    """Those of the keys of `config.json` and of the tensors."""
    yield from _of_json(folder, "config.json")
    yield from _of_tensors(folder)


def mutated(folder: Path, mutation: Mutation, place: Path) -> Path:
    """A damaged copy of `folder`, in place of the one before."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    mutation.apply(place)
    return place


def _of_json(folder: Path, name: str) -> Iterator[Mutation]:
    content = json.loads((folder / name).read_text())
    for path in _paths(content):
        for kind, value in _VALUES.items():
            yield Mutation(f"{name}: {'.'.join(path)} {kind}", name, path[-1], partial(_set, name, path, value))
    yield Mutation(f"{name} removed", name, "", lambda place: (place / name).unlink())
    for label, text in (("empty", ""), ("a list", "[]"), ("null", "null"), ("half", json.dumps(content)[:-20])):
        yield Mutation(f"{name} {label}", name, "", partial(_write, name, text.encode()))


def _paths(content: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Of every key, those of objects inside too, as far as somebody reads them."""
    for key, value in content.items():
        yield (key,)
        if isinstance(value, dict) and key in _READ_INSIDE:
            yield from ((key, *inner) for inner in _paths(value))


def _set(name: str, path: tuple[str, ...], value: Any, place: Path) -> None:
    content = json.loads((place / name).read_text())
    section = content
    for key in path[:-1]:
        section = section[key]
    if value is _GONE:
        del section[path[-1]]
    else:
        section[path[-1]] = copy.deepcopy(value)
    (place / name).write_text(json.dumps(content))


def _of_index(folder: Path) -> Iterator[Mutation]:
    """Names of files for one tensor that are none, or not its own."""
    first = json.loads((folder / INDEX).read_text())["weight_map"]
    tensor = min(first)
    for value in ("../config.json", "config.json", "/etc/passwd", "", "no\0file", 3, None, [], min(first.values())):
        yield Mutation(f"{INDEX}: {value!r}", INDEX, tensor, partial(_set, INDEX, ("weight_map", tensor), value))


def _write(name: str, data: bytes, place: Path) -> None:
    (place / name).write_bytes(data)


def _of_tensors(folder: Path) -> Iterator[Mutation]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as reader:
            names = sorted(reader.keys())
            shapes = {name: tuple(reader.get_slice(name).get_shape()) for name in names}
        for name in names:
            for label, change in _changes(name, shapes[name]):
                yield Mutation(f"{name} {label}", file.name, name, partial(_replace, file.name, name, change))


Change = Callable[[torch.Tensor], torch.Tensor | None]


def _changes(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Change]]:
    short = name.rpartition(".")[2]
    yield from _shapes(shape)
    dtypes = ("int64", "uint8", "bool", "float64", "float8_e4m3fn")
    dtypes += _OTHER_INTEGERS.get(short, ("int32", "float16", "float32"))
    for dtype in dtypes:
        yield f"as {dtype}", partial(_cast, getattr(torch, dtype))
    for index, value in _WRONG_VALUES.get(short, ()):
        yield f"with {value} at {index}", partial(_put, index, value)
    if short == "q_invperm":
        yield "with a row twice", lambda tensor: torch.cat([tensor[1:2], tensor[1:]])


def _shapes(shape: tuple[int, ...]) -> Iterator[tuple[str, Change]]:
    yield "dropped", lambda _: None
    yield "with a dimension more", lambda tensor: tensor.unsqueeze(0)
    yield "without its last row", lambda tensor: tensor[:-1].clone()
    yield "with a row more", lambda tensor: torch.cat([tensor, tensor[-1:]])
    yield "empty", lambda tensor: tensor[:0].clone()
    if len(shape) == 1:
        yield "of one number", lambda tensor: tensor[0].clone()
    else:
        yield "flat", lambda tensor: tensor.flatten()
        yield "without its last column", lambda tensor: tensor[:, :-1].contiguous()
    # A square matrix, transposed, is another one of the same shape.
    if len(shape) == 2 and shape[0] != shape[1]:
        yield "transposed", lambda tensor: tensor.T.contiguous()


def _cast(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype)


def _put(index: int, value: float, tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[index] = value
    return changed


def _replace(file: str, name: str, change: Change, place: Path) -> None:
    tensors = load_file(place / file)
    changed = change(tensors[name])
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    save_file(tensors, place / file)


def _of_bytes(folder: Path, chance: random.Random) -> Iterator[Mutation]:
    """Weight files cut, and headers with bytes that are not what they were."""
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        for _ in range(12):
            end = chance.choice([chance.randrange(header), chance.randrange(len(data))])
            yield Mutation(f"{file.name} cut to {end} bytes", file.name, "", partial(_write, file.name, data[:end]))
        for _ in range(40):
            scrambled = bytearray(data)
            places = [chance.randrange(header) for _ in range(chance.choice([1, 1, 2, 8]))]
            for at in places:
                scrambled[at] = chance.choice([chance.randrange(256), ord(chance.choice('0123456789[]{},:"'))])
            label = f"{file.name} scrambled at {places}"
            yield Mutation(label, file.name, "", partial(_write, file.name, bytes(scrambled)))


def _of_kinds(folder: Path, chance: random.Random) -> Iterator[Mutation]:
    """In a file's place what is none, is far too large, or holds what nobody writes there."""
    kinds: dict[str, Callable[[Path], object]] = {
        **NOT_PLAIN,
        "sparse": sparse,
        "lost": lambda path: path.symlink_to("nowhere"),
        "its own link": lambda path: path.symlink_to(path.name),
    }
    garbage = chance.randbytes(chance.randrange(1, 5000))
    nested = b'{"a":' * 50_000
    wide = b'{"a": [' + b"[]," * 200_000 + b"0]}"
    for number, content in enumerate((garbage, nested, b"[" * 10**6, wide, b'{"a": ' + b"9" * 10**5 + b"}")):
        kinds[f"content {number}"] = partial(_written, content)
    for file in sorted(folder.iterdir()):
        if file.name in JSON_FILES or file.suffix == ".safetensors":
            for kind, make in kinds.items():
                yield Mutation(f"{file.name} is {kind}", file.name, "", partial(_in_place, file.name, make))


def _written(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _in_place(name: str, make: Callable[[Path], object], place: Path) -> None:
    (place / name).unlink()
    make(place / name)

"""A model of a known shape full of random weights, in the tensors of a real file, made as they are asked for.

Nothing of the weights is on disk or in host memory: every tensor is made on the device that will hold it, always the
same one for the same name. Sizes are chosen so that activations stay near 1 through any number of layers: inputs and
outputs of a matrix are of about equal size, and norm weights have random signs, because codes lie between -2^(b-1) and
2^(b-1) - 1 and the half that they are off centre would otherwise add up.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from exlchat.engine.bench.mixes import Gptq, MeanBits, Mix, OneRecipe, layer_recipes, matrix_sizes
from exlchat.engine.bench.shapes import Shape
from exlchat.engine.formats.sections import HEAD_RECIPES, Section, group_sizes
from exlchat.engine.weights.checkpoint import Checkpoint, identify
from exlchat.engine.weights.files import LARGEST_JSON, read_bytes
from exlchat.llm.info import ModelError

_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def tokenizer_json(vocab_size: int) -> dict[str, Any]:
    """The content of a `tokenizer.json` with exactly `vocab_size` tokens, at least 256.

    Text is encoded byte by byte, because there are no merges; the words come only from a model's random choices and
    are of the length that tokens have on average.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = map("".join, itertools.product(_LETTERS, repeat=4))
    tokens = itertools.islice(itertools.chain(alphabet, words), vocab_size)
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    return content


_CONVERTER = "0.3.2"
_SHARD_BYTES = 2**31
_BYTES = {"I32": 4, "I16": 2, "F16": 2}
# How far apart the logits are; real models give their likeliest tokens about this much.
_HEAD_GAIN = 3.0
# Root mean square of (index + 1)^2 / 256 over the 16 indices, and of equally likely codes in units of their number.
_RMS_SCALE = math.sqrt(sum(index**4 for index in range(1, 17)) / 16) / 256
_RMS_CODE = 1 / math.sqrt(12)


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _BYTES[self.dtype]


class RandomCheckpoint(Checkpoint):
    """A model directory of which only the JSON files exist, in a temporary folder that goes with this object.

    Args:
        shape: sizes of the model.
        mix: which bits its layers have.
        head_bits: the converter's option for the output head of an EXL2 model; a GPTQ model has a float16 head.
        device: where tensors are made.

    Raises:
        ValueError: the mix does not fit the shape, or there is no recipe for so many head bits.
    """

    def __init__(self, shape: Shape, mix: Mix, head_bits: int = 6, device: torch.device | str = "cpu") -> None:
        if head_bits not in HEAD_RECIPES:
            raise ValueError(f"head_bits is {head_bits}; EXL2 heads have {', '.join(map(str, HEAD_RECIPES))}")
        self._device = torch.device(device)
        self._folder = tempfile.TemporaryDirectory(prefix="exlchat-random-")
        self.path = Path(self._folder.name) / f"{shape.name}-random"
        self.path.mkdir()
        self.config = {**shape.config(), "quantization_config": _quantization(mix, head_bits)}
        _write_json(self.path / "config.json", self.config)
        _write_json(self.path / "tokenizer.json", tokenizer_json(shape.vocab))
        _write_json(self.path / "tokenizer_config.json", {})
        self._tensors: dict[str, _Tensor] = {}
        self._add_layers(shape, mix)
        self._add_normal("model.embed_tokens.weight", (shape.vocab, shape.hidden), 1.0)
        self._add_signs("model.norm.weight", shape.hidden)
        if isinstance(mix, Gptq):
            self._add_normal("lm_head.weight", (shape.vocab, shape.hidden), _HEAD_GAIN / math.sqrt(shape.hidden))
        else:
            sizes = (shape.hidden, shape.vocab)
            self._add_exl2("lm_head", sizes, HEAD_RECIPES[head_bits], order="lm_head", gain=_HEAD_GAIN)

    @property
    def identity(self) -> str:
        return identify(read_bytes(self.path / "config.json", largest=LARGEST_JSON), ())

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def file_of(self, name: str) -> Path:
        """Where the tensor would be; there is no such file."""
        return self.path / f"{name}.safetensors"

    def name_in_file(self, name: str) -> str:
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        return self._entry(name).dtype

    def tensor(self, name: str) -> Tensor:
        return self._entry(name).make()

    def tensors(self, key: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: self.tensor(f"{key}.{name}") for name in names if f"{key}.{name}" in self._tensors}

    def write(self, folder: Path) -> None:
        """Makes a real model directory of it, in a new folder and in shards of 2 GiB.

        Raises:
            ModelError: the folder is there already, or cannot be written.
        """
        try:
            folder.mkdir(parents=True)
            for file in self.path.iterdir():
                (folder / file.name).write_bytes(read_bytes(file, largest=LARGEST_JSON))
            shards = self._shards()
            for number, names in enumerate(shards, start=1):
                content = {name: self.tensor(name).cpu().contiguous() for name in names}
                save_file(content, folder / f"output-{number:05d}-of-{len(shards):05d}.safetensors")
        except FileExistsError as error:
            raise ModelError(f"{folder}: is there already; give a new folder for the random model") from error
        except OSError as error:
            raise ModelError(f"{folder}: cannot be written ({(error.strerror or str(error)).lower()})") from error

    def _shards(self) -> list[list[str]]:
        shards: list[list[str]] = [[]]
        filled = 0
        for name, tensor in self._tensors.items():
            if filled and filled + tensor.bytes > _SHARD_BYTES:
                shards.append([])
                filled = 0
            shards[-1].append(name)
            filled += tensor.bytes
        return shards

    def _entry(self, name: str) -> _Tensor:
        if name not in self._tensors:
            raise ModelError(f"{self.path}: a random model has no tensor {name}")
        return self._tensors[name]

    def _add_layers(self, shape: Shape, mix: Mix) -> None:
        recipes: Sequence[Mapping[str, tuple[Section, ...]]] = (
            [] if isinstance(mix, Gptq) else layer_recipes(mix, shape)
        )
        for layer in range(shape.layers):
            prefix = f"model.layers.{layer}"
            for norm in ("input_layernorm", "post_attention_layernorm"):
                self._add_signs(f"{prefix}.{norm}.weight", shape.hidden)
            for name, sizes in matrix_sizes(shape).items():
                attention = name in ("q_proj", "k_proj", "v_proj", "o_proj")
                key = f"{prefix}.{'self_attn' if attention else 'mlp'}.{name}"
                # Matrices that read the same input were calibrated on the same statistics, which set the order.
                order = f"{prefix}.{_INPUTS[name]}"
                if isinstance(mix, Gptq):
                    self._add_gptq(key, sizes, mix, order=order)
                else:
                    self._add_exl2(key, sizes, recipes[layer][name], order=order, gain=1.0)

    def _add_exl2(
        self, key: str, sizes: tuple[int, int], sections: Sequence[Section], *, order: str, gain: float
    ) -> None:
        features, outputs = sizes
        groups = group_sizes(features, sections)
        table: list[int] = []
        maxima: list[float] = []
        word_row = 0
        for bits, rows in groups:
            table += [bits, word_row]
            word_row += rows * bits // 32
            maxima.append(gain / (math.sqrt(features) * 2**bits * _RMS_CODE * _RMS_SCALE))
        self._add_bits(f"{key}.q_weight", (word_row, outputs))
        self._add_bits(f"{key}.q_scale", (len(groups), outputs // 8))
        self._add(f"{key}.q_invperm", (features,), "I32", lambda: self._permutation(order, features))
        self._add(f"{key}.q_scale_max", (len(groups),), "F16", lambda: self._values(maxima, torch.float16))
        self._add(f"{key}.q_groups", (2 * len(groups),), "I16", lambda: self._values(table, torch.int16))

    def _add_gptq(self, key: str, sizes: tuple[int, int], mix: Gptq, *, order: str) -> None:
        features, outputs = sizes
        groups = -(-features // mix.group_size)
        scale = 1 / (math.sqrt(features) * 2**4 * _RMS_CODE)

        def group_of_row() -> Tensor:
            rows = torch.arange(features, device=self._device)
            return ((self._permutation(order, features) if mix.act_order else rows) // mix.group_size).int()

        def scales() -> Tensor:
            spread = torch.rand(groups, outputs, generator=self._draws(f"{key}.scales"), device=self._device)
            return (scale * (0.5 + spread)).half()

        def zeros() -> Tensor:
            return torch.full((groups, outputs // 8), 0x77777777, dtype=torch.int32, device=self._device)

        self._add_bits(f"{key}.qweight", (features // 8, outputs))
        self._add(f"{key}.qzeros", (groups, outputs // 8), "I32", zeros)
        self._add(f"{key}.scales", (groups, outputs), "F16", scales)
        self._add(f"{key}.g_idx", (features,), "I32", group_of_row)

    def _add_bits(self, name: str, shape: tuple[int, int]) -> None:
        def make() -> Tensor:
            return torch.randint(
                -(2**31), 2**31, shape, dtype=torch.int32, generator=self._draws(name), device=self._device
            )

        self._add(name, shape, "I32", make)

    def _add_normal(self, name: str, shape: tuple[int, int], deviation: float) -> None:
        def make() -> Tensor:
            values = torch.randn(shape, generator=self._draws(name), dtype=torch.float16, device=self._device)
            return values.mul_(deviation)

        self._add(name, shape, "F16", make)

    def _add_signs(self, name: str, size: int) -> None:
        def make() -> Tensor:
            return torch.randint(2, (size,), generator=self._draws(name), device=self._device).mul(2).sub(1).half()

        self._add(name, (size,), "F16", make)

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, make: Callable[[], Tensor]) -> None:
        self._tensors[name] = _Tensor(shape, dtype, make)

    def _permutation(self, order: str, size: int) -> Tensor:
        return torch.randperm(size, generator=self._draws(order), device=self._device, dtype=torch.int32)

    def _values(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _draws(self, name: str) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))


_INPUTS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
    "o_proj": "o",
    "down_proj": "down",
}


def _quantization(mix: Mix, head_bits: int) -> dict[str, object]:
    match mix:
        case Gptq():
            return {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": mix.group_size,
                "desc_act": mix.act_order,
                "sym": True,
                "checkpoint_format": "gptq",
            }
        case MeanBits():
            bits = mix.bits
        case OneRecipe():
            bits = round(sum(section.bits * section.proportion for section in mix.sections), 2)
    return {"quant_method": "exl2", "version": _CONVERTER, "bits": bits, "head_bits": head_bits}


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")

"""Random small models written as EXL2's original converter writes them, and `transformers` on what is in the files.

What it does otherwise than Hugging Face (`formats/exl2.md` 13, `formats/models.md` 5): joined matrices are split and
called as if they never were one, GPT-2's are turned over, names are those of its own table, a norm that all heads share
is repeated for each of them, what Gemma adds to its norms is added and taken away in float16, and the output head is
always a matrix of its own, filled up to 32 columns, also where the model ties it to the embedding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, PreTrainedModel

from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2_writer import quantize_matrix
from exlchat.engine.formats.sections import SIX_BITS, Section
from tests.engine.family_models import CASES, Files, save_case
from tests.random_models import save_tokenizer

VOCAB = 390
"""No multiple of 32: the head has 416 columns."""
_BODY = (Section(6, 0.5, 32), Section(4, 0.5, 32))
_INNER = re.compile(r"(^|\.)(layers|h)\.\d+\.")
_SPLIT = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
Renames = tuple[tuple[str, str], ...]
_GPT: Renames = (
    ("transformer.ln_f", "model.norm"),
    ("transformer.", "model."),
    (".attn.c_proj.", ".self_attn.o_proj."),
    (".h.", ".layers."),
    (".wte.", ".embed_tokens."),
)
_INTERNLM2: Renames = (
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
)
_IN_LANGUAGE_MODEL: Renames = (("^", "language_model."),)


@dataclass(frozen=True, slots=True)
class Converted:
    """One model that this converter knows.

    Args:
        case: which of `CASES`; its own rewriting gives `config.json`.
        renames: from the names of `transformers` to the converter's.
        changes: of the model's configuration.
        config: more keys of `config.json`.
    """

    case: str
    renames: Renames = ()
    changes: tuple[tuple[str, Any], ...] = ()
    config: tuple[tuple[str, Any], ...] = ()


_PIXTRAL = (("vision_config", {"model_type": "pixtral", "hidden_size": 32}),)
MODELS: dict[str, Converted] = {
    "LlamaForCausalLM": Converted("llama, heads of their own, tied"),
    "MistralForCausalLM": Converted("mistral"),
    "MixtralForCausalLM": Converted("mixtral"),
    "YiForCausalLM": Converted("yi", (("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"))),
    "OrionForCausalLM": Converted("orion"),
    "Qwen2ForCausalLM": Converted("qwen2, upper windows, tied"),
    "Qwen3ForCausalLM": Converted("qwen3, biases, tied"),
    "Qwen3MoeForCausalLM": Converted("qwen3_moe"),
    "GemmaForCausalLM": Converted("gemma, one key-value head", changes=(("head_dim", 32),)),
    "Gemma2ForCausalLM": Converted("gemma2"),
    "Gemma3ForConditionalGeneration": Converted(
        "gemma3 with images", _IN_LANGUAGE_MODEL, config=(("vision_config", {"model_type": "siglip_vision_model"}),)
    ),
    "Starcoder2ForCausalLM": Converted("starcoder2"),
    "CohereForCausalLM": Converted("cohere"),
    "CohereForCausalLM, head norms": Converted("cohere, head norms"),
    "Cohere2ForCausalLM": Converted("cohere2"),
    "Phi3ForCausalLM": Converted("phi3, part of a head, window, tied"),
    "GPTBigCodeForCausalLM": Converted("gpt_bigcode", _GPT, changes=(("n_head", 2),)),
    "GPT2LMHeadModel": Converted("gpt2, another width inside", _GPT, changes=(("n_inner", 96),)),
    "MiniCPMForCausalLM": Converted("minicpm, tied, stretched"),
    "InternLM2ForCausalLM": Converted("internlm2", _INTERNLM2),
    "GraniteForCausalLM": Converted("granite, tied, biases"),
    "Glm4ForCausalLM": Converted("glm4"),
    "LlavaForConditionalGeneration": Converted("mistral with images", _IN_LANGUAGE_MODEL, config=_PIXTRAL),
    "Mistral3ForConditionalGeneration": Converted("mistral with images", _IN_LANGUAGE_MODEL, config=_PIXTRAL),
    "Qwen2VLForConditionalGeneration": Converted("qwen2"),
    "Qwen2_5_VLForConditionalGeneration": Converted("qwen2"),
}
"""By architecture, all of those in `formats/models.md` that exlchat runs."""


def write_converted(name: str, path: Path) -> PreTrainedModel:
    """Writes the model's directory and returns what `transformers` makes of the weights in it."""
    converted, dense, architecture = MODELS[name], path / "dense", name.partition(",")[0]
    case = CASES[converted.case]
    sizes = {**case.changes, **dict(converted.changes), "vocab_size": VOCAB}
    own_config: dict[str, Any] = {}

    def keep(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
        """The model as `transformers` has it; its config as the architecture's own files."""
        own_config.update(case.rewrite(dict(tensors), dict(config))[1] if case.rewrite else config)
        return tensors, config

    save_case(replace(case, changes=sizes, rewrite=keep), dense)
    own_config.update({**dict(converted.config), "architectures": [architecture], "torch_dtype": "float16"})
    config = json.loads((dense / "config.json").read_text())
    writer = _Writer(config, converted.renames, norm_constant=1.0 if "gemma" in case.model_type else 0.0)
    source = load_file(dense / "model.safetensors")
    for key, tensor in source.items():
        writer.add(key, tensor)
    embedding = source.get("model.embed_tokens.weight", source.get("transformer.wte.weight"))
    writer.add_head(source.get("lm_head.weight", embedding))
    if "vision_config" in own_config:
        writer.tensors["vision_tower.patch_conv.weight"] = torch.zeros(3, 3, dtype=torch.bfloat16)
    save_file({key: tensor.contiguous() for key, tensor in writer.tensors.items()}, path / "output.safetensors")
    calibration = {"rows": 115, "length": 2048, "dataset": "(default)"}
    section = {"quant_method": "exl2", "version": "0.3.2", "bits": 5.0, "head_bits": 6, "calibration": calibration}
    (path / "config.json").write_text(json.dumps({**own_config, "quantization_config": section}))
    save_tokenizer(path)
    save_file({key: tensor.contiguous() for key, tensor in writer.floats.items()}, dense / "model.safetensors")
    (dense / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        dense, attn_implementation="eager", dtype=torch.float32
    )
    return reference.eval()


class _Writer:
    """Tensors as the converter names them, and `floats`: what they come to, as `transformers` names them."""

    def __init__(self, config: dict[str, Any], renames: Renames, *, norm_constant: float) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.floats: dict[str, Tensor] = {}
        self._renames = renames
        self._norm_constant = norm_constant
        heads = config.get("num_attention_heads", config.get("n_head"))
        hidden = config.get("hidden_size", config.get("n_embd"))
        one_key = 1 if config.get("multi_query") else heads
        self._heads = {"q_norm": heads, "k_norm": config.get("num_key_value_heads") or one_key}
        self._head_dim = config.get("head_dim") or hidden // heads
        self._transposed = config["model_type"] == "gpt2"

    def add(self, key: str, tensor: Tensor) -> None:
        module, _, kind = key.rpartition(".")
        last = module.rpartition(".")[2]
        is_norm = "norm" in last or last.startswith("ln_")
        in_layer = _INNER.search(key) is not None and not is_norm
        if in_layer and kind == "weight" and not key.endswith("gate.weight"):
            self._add_matrix(module, tensor)
        elif in_layer and kind == "bias":
            self._add_bias(module, tensor.half())
        elif is_norm and kind == "weight":
            self._add_norm(key, last, tensor)
        elif key != "lm_head.weight":
            self.tensors[self._name(key)] = tensor.half()
            self.floats[key] = tensor.half().float()

    def add_head(self, weight: Tensor) -> None:
        self.floats["lm_head.weight"] = self._quantized(self._name("lm_head"), weight, SIX_BITS)

    def _add_matrix(self, module: str, weight: Tensor) -> None:
        rows = weight.T if self._transposed else weight
        parts = [
            self._quantized(self._name(f"{name}.weight").removesuffix(".weight"), part, _BODY)
            for name, part in self._parts(module, rows)
        ]
        floats = torch.cat(parts)
        self.floats[f"{module}.weight"] = floats.T if self._transposed else floats

    def _add_bias(self, module: str, bias: Tensor) -> None:
        for name, part in self._parts(module, bias):
            self.tensors[self._name(f"{name}.bias")] = part
        self.floats[f"{module}.bias"] = bias.float()

    def _add_norm(self, key: str, last: str, weight: Tensor) -> None:
        constant = self._norm_constant
        stored = ((weight.half() + constant).half() - constant).half()
        self.floats[key] = stored.float()
        if last in self._heads and stored.ndim == 1:
            stored = stored.repeat(self._heads[last], 1)
        self.tensors[self._name(key)] = stored

    def _parts(self, module: str, rows: Tensor) -> list[tuple[str, Tensor]]:
        """Under which names what a matrix or bias holds is stored."""
        for joined, names in _SPLIT.items():
            if module.endswith(f".{joined}"):
                sizes: Sequence[int] = [len(rows) // 2] * 2
                if len(names) == 3:
                    sizes = [self._head_dim * self._heads[norm] for norm in ("q_norm", "k_norm", "k_norm")]
                prefix = module.removesuffix(joined)
                return [(prefix + name, part) for name, part in zip(names, rows.split(sizes), strict=True)]
        return [(module, rows)]

    def _quantized(self, name: str, weight: Tensor, sections: Sequence[Section]) -> Tensor:
        """Stores `[N, K]` and returns what is read back."""
        filled = pad(weight.half().float(), (0, 0, 0, -len(weight) % 32))
        written = quantize_matrix(filled.T, sections)
        self.tensors.update({f"{name}.{kind}": tensor for kind, tensor in written.items()})
        return exl2.dequantize(written).T[: len(weight)].float()

    def _name(self, key: str) -> str:
        for old, new in self._renames:
            key = new + key if old == "^" else key.replace(old, new)
        return key

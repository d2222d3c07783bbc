"""Ways of quantizing that exlchat does not read, by what `config.json` and the names of tensors say. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from exlchat.llm.info import ModelError

READ = ("exl2", "gptq", "awq", "mxfp4")
_MEND = "get the model as EXL2, GPTQ, AWQ (gemm) or unquantized"
_MLX = "MLX, for Apple's chips"
# By `quant_method`, as transformers spells it.
_METHODS = {
    "aqlm": "AQLM",
    "auto-round": "AutoRound",
    "bitnet": "BitNet",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors, for vLLM",
    "eetq": "EETQ",
    "exl3": "EXL3",
    "fbgemm_fp8": "FP8",
    "fp8": "FP8",
    "higgs": "HIGGS",
    "hqq": "HQQ",
    "modelopt": "NVIDIA ModelOpt, as NVFP4 and FP8",
    "quanto": "Quanto",
    "quark": "AMD Quark",
    "spqr": "SpQR",
    "torchao": "torchao",
    "vptq": "VPTQ",
}
# Tensors that only one of them has, by how their names end.
_TENSORS = {
    ".trellis": "EXL3",
    ".weight_scale_inv": "FP8",
    ".weight_scale_2": "NVFP4, of NVIDIA ModelOpt",
    ".weight_packed": "compressed-tensors, for vLLM",
    ".weight.absmax": "bitsandbytes",
    ".weight.quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".codebooks": "AQLM",
    ".W_q": "HQQ",
    ".biases": _MLX,
}
_NO_TEXT = re.compile(r"\w+(Model|ForMaskedLM|ForSequenceClassification|ForTokenClassification|ForQuestionAnswering)")
_TEXT_MODELS = re.compile(r"\w+LM(Head)?Model")


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Sees that a model is a decoder of text, quantized in no way that is known and not read.

    Args:
        config: the content of `config.json`.
        where: the file's name, for the error.

    Raises:
        ModelError: it is something else: what, and what would work.
    """
    _check_kind(config, where)
    if _is_mlx(config):
        raise ModelError(f"{where}: quantization says that this is {_MLX}, which exlchat does not read; {_MEND}")
    section = config.get("quantization_config")
    if section is None:
        return
    if not isinstance(section, dict):
        raise ModelError(f"{where}: quantization_config is {_short(section)}; it must be an object")
    method = section.get("quant_method")
    if method is None and (section.get("load_in_4bit") is True or section.get("load_in_8bit") is True):
        method = "bitsandbytes"
    if method is not None and not isinstance(method, str):
        raise ModelError(f"{where}: quantization_config: quant_method is {_short(method)}; it must be a string")
    if method is None or method.lower() in READ:
        return
    known = _METHODS.get(method.lower())
    name = f" ({known})" if known is not None and known.lower() != method.lower() else ""
    raise ModelError(
        f"{where}: quantization_config: quant_method is {_short(method)}{name}, which exlchat does not read; {_MEND}"
    )


def check_names(names: Iterable[str], where: str) -> None:
    """Sees that no tensor is of a way of quantizing that is known and not read, where `config.json` does not tell.

    Args:
        names: of all tensors.
        where: the folder, for the error.

    Raises:
        ModelError: one is: which, and what would work.
    """
    endings = tuple(_TENSORS)
    for name in filter(lambda name: name.endswith(endings), names):
        for ending, method in _TENSORS.items():
            if name.endswith(ending):
                raise ModelError(f"{where}: {name} shows that this is {method}, which exlchat does not read; {_MEND}")


def _check_kind(config: Mapping[str, Any], where: str) -> None:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if config.get("is_encoder_decoder") is True:
        raise ModelError(
            f"{where}: is_encoder_decoder is true: {name or 'this'} reads with an encoder, as translators do; exlchat "
            "runs models with a decoder alone, such as LlamaForCausalLM"
        )
    if _NO_TEXT.fullmatch(name) and not _TEXT_MODELS.fullmatch(name):
        raise ModelError(
            f"{where}: architectures names {name}, which makes vectors or labels and no text (an encoder, or a model "
            "without its output head); get a ...ForCausalLM"
        )


def _is_mlx(config: Mapping[str, Any]) -> bool:
    section = config.get("quantization")
    return isinstance(section, dict) and "group_size" in section and "bits" in section


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""What `quantization_config` of `config.json` says about layers with a scale and a zero point per group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exlchat.engine.formats.awq import BITS as AWQ_BITS
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.gptq import BIT_WIDTHS, CHECKPOINT_FORMATS, GptqSettings
from exlchat.engine.model.config_reader import ConfigReader

_MEND = "get the model as EXL2, GPTQ or AWQ (gemm)"


def read_quantization(config: Mapping[str, Any], where: str) -> GptqSettings | AwqSettings | None:
    """The settings of a GPTQ or AWQ model; `None` where the file says nothing, and the tensors have to.

    Which layers are quantized is told by the names of the tensors alone: `modules_to_not_convert` is only checked.

    Args:
        config: the content of `config.json`.
        where: the file's name, for error lines.

    Raises:
        ModelError: another method, or a value that is not known.
    """
    section = ConfigReader(config, where).section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "gptq").lower()
    skipped = section.get("modules_to_not_convert")
    if skipped is not None and not (isinstance(skipped, list) and all(isinstance(name, str) for name in skipped)):
        raise section.error("modules_to_not_convert", f"is {skipped!r}; it must be a list of names")
    if method == "exl2":
        return None
    if method == "gptq":
        return _gptq(section)
    if method == "awq":
        return _awq(section)
    raise section.error("quant_method", f"is {method!r}, which exlchat does not read; {_MEND}")


def _gptq(section: ConfigReader) -> GptqSettings:
    stored_as = section.text("checkpoint_format", "gptq")
    if stored_as not in CHECKPOINT_FORMATS:
        raise section.error("checkpoint_format", f"is {stored_as!r}, which exlchat does not read; {_MEND}")
    bits = None if section.get("bits") is None else section.integer("bits")
    if bits is not None and bits not in BIT_WIDTHS:
        raise section.error("bits", f"is {bits}; exlchat reads GPTQ of {', '.join(map(str, BIT_WIDTHS))} bits")
    act_order = _flag(section, "desc_act") or False
    symmetric, size = _flag(section, "sym"), _group_size(section)
    if section.get("dynamic"):
        # GPTQModel: bits and groups of some layers differ; their tensors show them.
        bits = size = None
    return GptqSettings(stored_as == "gptq_v2", symmetric, size, bits, act_order)


def _awq(section: ConfigReader) -> AwqSettings:
    version = section.text("version", "gemm").lower()
    if version != "gemm":
        raise section.error("version", f"is {version!r}; of AWQ exlchat reads gemm alone; {_MEND}")
    bits = section.integer("bits", AWQ_BITS)
    if bits != AWQ_BITS:
        raise section.error("bits", f"is {bits}; exlchat reads AWQ of {AWQ_BITS} bits")
    _flag(section, "zero_point")
    return AwqSettings(_group_size(section))


def _group_size(section: ConfigReader) -> int | None:
    size = section.get("group_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or (size != -1 and size < 1)):
        raise section.error("group_size", f"is {size!r}; it must be a positive whole number or -1")
    return size


def _flag(section: ConfigReader, key: str) -> bool | None:
    value = section.get(key)
    if value is not None and not isinstance(value, bool):
        raise section.error(key, f"is {value!r}; it must be true or false")
    return value

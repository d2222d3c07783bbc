"""The reply of `/v1/models`."""

from __future__ import annotations

from typing import Any

from exlchat.llm.info import ModelInfo


def model_entry(name: str, info: ModelInfo | None, created: int, *, loaded: bool, bare: bool) -> dict[str, Any]:
    """One name under which a model answers. `max_model_len` is what clients of vLLM look for.

    Args:
        info: `None` of a model that was never loaded.
        bare: nobody's voice goes with it, so that a client may write its prompts itself.
    """
    entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "exlchat"}
    meta: dict[str, Any] = {"loaded": loaded}
    if info is None:
        return {**entry, "meta": meta}
    meta |= {
        "max_context": info.max_seq_len,
        "architecture": info.architecture,
        "quantization": info.quantization,
        "parameters": info.parameters,
    }
    if bare:
        meta |= {
            "chat_template": info.chat_template,
            "bos_token": info.bos_token,
            "eos_token": info.eos_token,
            "vocab_size": info.vocab_size,
        }
    return {**entry, "max_model_len": info.max_seq_len, "meta": meta}


def model_list(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": entries}


def tabby_model(name: str, info: ModelInfo, created: int, cache_kind: str) -> dict[str, Any]:
    """TabbyAPI's `/v1/model`: the one that is loaded."""
    parameters = {
        "max_seq_len": info.max_seq_len,
        "cache_size": info.max_seq_len,
        "cache_mode": cache_kind,
        "prompt_template": "model" if info.chat_template else None,
        "use_vision": False,
    }
    return {**model_entry(name, info, created, loaded=True, bare=False), "parameters": parameters}

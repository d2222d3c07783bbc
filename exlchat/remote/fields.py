"""What a request asks for, by the names that each kind of server has for it. What one does not know is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Literal

from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import STEPS, TokenName
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import SamplingSettings
from exlchat.untrusted.text import one_line

ServerKind = Literal["exlchat", "llama.cpp", "vllm", "tabbyapi", "ollama", "openai"]

_COMMON = {"temperature": "temperature", "top_p": "top_p"}
_PENALTIES = {"frequency_penalty": "frequency_penalty", "presence_penalty": "presence_penalty"}
_XTC = {"xtc_probability": "xtc_probability", "xtc_threshold": "xtc_threshold"}
_DRY = {"dry_multiplier": "dry_multiplier", "dry_base": "dry_base", "dry_allowed_length": "dry_allowed_length"}
_OURS = {field.name: field.name for field in fields_of(SamplingSettings)}

SAMPLING: Mapping[ServerKind, Mapping[str, str]] = {
    "exlchat": _OURS,
    "llama.cpp": {
        **(_COMMON | _PENALTIES | _XTC | _DRY),
        **{name: name for name in ("top_k", "min_p", "typical_p", "mirostat_tau", "mirostat_eta")},
        "dynatemp_exponent": "dynatemp_exponent",
        "repetition_penalty": "repeat_penalty",
        "dry_breakers": "dry_sequence_breakers",
    },
    "vllm": _COMMON | _PENALTIES | {name: name for name in ("top_k", "min_p", "repetition_penalty")},
    "tabbyapi": {
        **(_COMMON | _PENALTIES | _XTC | _DRY),
        **{name: name for name in ("top_k", "min_p", "top_a", "tfs", "repetition_penalty", "penalty_range", "skew")},
        **{name: name for name in ("smoothing_factor", "mirostat_tau", "mirostat_eta")},
        "typical_p": "typical",
        "penalty_decay": "repetition_decay",
        "dry_range": "dry_range",
        "dry_breakers": "dry_sequence_breakers",
        "dynatemp_low": "min_temp",
        "dynatemp_high": "max_temp",
        "dynatemp_exponent": "temp_exponent",
    },
    "ollama": _COMMON | _PENALTIES,
    "openai": _COMMON | _PENALTIES,
}
"""Our name of a value -> the server's, where it means the same there."""

_LLAMA_STEPS = {
    "temperature": "temperature",
    "top_n_sigma": "top_n_sigma",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical": "typ_p",
    "xtc": "xtc",
}
"""Our steps of a distribution -> llama.cpp's samplers, which stand in the order in which they are done."""

_PER_SERVER: Mapping[ServerKind, frozenset[str]] = {
    "llama.cpp": frozenset({"top_n_sigma", "dynatemp_low", "dynatemp_high", "penalty_range", "dry_range", "order"}),
}
"""What is sent by a rule of its own."""

_CONSTRAINTS: Mapping[ServerKind, frozenset[str]] = {
    "exlchat": frozenset({"json_schema", "regex", "choice", "grammar"}),
    "llama.cpp": frozenset({"json_schema", "choice"}),
    "vllm": frozenset({"json_schema", "regex", "choice"}),
    "tabbyapi": frozenset({"json_schema", "regex"}),
    "ollama": frozenset({"json_schema"}),
    "openai": frozenset({"json_schema"}),
}


def sampling_fields(kind: ServerKind, sampling: SamplingSettings, context: int) -> dict[str, Any]:
    """Raises `RequestError`, in one line, for what is on and the server does not know. `context` is in tokens."""
    known = SAMPLING[kind]
    own = _PER_SERVER.get(kind, frozenset())
    missing = [
        name
        for name in _OURS
        if name not in known
        and name not in own
        and name not in ("logit_bias", "banned_tokens")
        and sampling.is_on(name)
        and not (name == "order" and sampling.order == STEPS)
    ]
    if missing:
        raise RequestError(
            f"this server ({kind}) does not know {', '.join(missing)}; set back what it does not know, "
            "or take another preset"
        )
    wanted = {sent: getattr(sampling, name) for name, sent in known.items() if _is_sent(name, sampling)}
    wanted |= _RULES[kind](sampling, context) if kind in _RULES else {}
    return wanted | _biases(kind, sampling)


def _is_sent(name: str, sampling: SamplingSettings) -> bool:
    # What is off is said too where the server's own default is on.
    return name in ("temperature", "top_p", "top_k", "min_p") or sampling.is_on(name)


def _llama(sampling: SamplingSettings, context: int) -> dict[str, Any]:
    samplers = [_LLAMA_STEPS[step] for step in sampling.order if step in _LLAMA_STEPS]
    found: dict[str, Any] = {
        "samplers": ["penalties", "dry", *samplers],
        # 0 looks back at nothing there.
        "repeat_last_n": sampling.penalty_range or context,
    }
    if sampling.is_on("dry_multiplier"):
        found["dry_penalty_last_n"] = sampling.dry_range or context
    if sampling.is_on("top_n_sigma"):
        found["top_n_sigma"] = sampling.top_n_sigma
    if sampling.dynatemp_high > 0.0:
        found["temperature"] = (sampling.dynatemp_low + sampling.dynatemp_high) / 2
        found["dynatemp_range"] = (sampling.dynatemp_high - sampling.dynatemp_low) / 2
    if sampling.mirostat_tau > 0.0:
        found["mirostat"] = 2
    return found


def _tabby(sampling: SamplingSettings, context: int) -> dict[str, Any]:
    del context
    return {"mirostat_mode": 2} if sampling.mirostat_tau > 0.0 else {}


_RULES: Mapping[ServerKind, Callable[[SamplingSettings, int], dict[str, Any]]] = {
    "llama.cpp": _llama,
    "tabbyapi": _tabby,
}


def named_by_ids(sampling: SamplingSettings, encode: Callable[[str], list[int]]) -> SamplingSettings:
    """With tokens by their ids that were named by their texts. Raises `RequestError` for a text that is not one."""

    def token(setting: str, name: TokenName) -> int:
        if isinstance(name, int):
            return name
        ids = encode(name)
        if len(ids) != 1:
            shown = one_line(repr(name), 40)
            raise RequestError(
                f"{setting}: {shown} is {len(ids)} tokens of this model; it must be one (or name its id)"
            )
        return ids[0]

    return replace(
        sampling,
        logit_bias=tuple((token("logit_bias", name), bias) for name, bias in sampling.logit_bias),
        banned_tokens=tuple(token("banned_tokens", name) for name in sampling.banned_tokens),
    )


def _biases(kind: ServerKind, sampling: SamplingSettings) -> dict[str, Any]:
    if not sampling.logit_bias and not sampling.banned_tokens:
        return {}
    if kind == "exlchat":
        return {}
    named = [one for one in (*dict(sampling.logit_bias), *sampling.banned_tokens) if isinstance(one, str)]
    if named or kind == "ollama":
        # llama.cpp takes a text, and then means each token of it, of a special one those of its name.
        raise RequestError(
            f"this server ({kind}) takes no bias of tokens by their text; name their ids, or leave out logit_bias "
            "and banned_tokens"
        )
    if kind == "llama.cpp":
        pairs: list[list[Any]] = [[token, bias] for token, bias in sampling.logit_bias]
        return {"logit_bias": [*pairs, *([token, False] for token in sampling.banned_tokens)]}
    biases = {str(token): bias for token, bias in sampling.logit_bias}
    return {"logit_bias": biases | {str(token): -100.0 for token in sampling.banned_tokens}}


def constraint_fields(kind: ServerKind, constraint: Constraint | None, *, chat: bool) -> dict[str, Any]:
    """`chat`: of a request with messages. `lacks.check` has refused what answers cannot be held to."""
    if constraint is None:
        return {}
    if constraint.kind == "json_schema":
        return _schema(kind, json.loads(constraint.text), chat=chat)
    if kind == "llama.cpp":
        return {"grammar": "root ::= " + " | ".join(_literal(choice) for choice in constraint.choices)}
    if kind == "vllm":
        held = constraint.text if constraint.kind == "regex" else list(constraint.choices)
        return {"structured_outputs": {constraint.kind: held}}
    if kind == "tabbyapi":
        return {"regex_pattern": constraint.text}
    return {constraint.kind: list(constraint.choices) if constraint.kind == "choice" else constraint.text}


def _schema(kind: ServerKind, schema: object, *, chat: bool) -> dict[str, Any]:
    if kind == "tabbyapi" or (kind == "llama.cpp" and not chat):
        return {"json_schema": schema}
    if kind == "vllm" and not chat:
        return {"structured_outputs": {"json": schema}}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    }


def _literal(text: str) -> str:
    """Of GBNF."""
    return json.dumps(text, ensure_ascii=True)


def length_fields(kind: ServerKind, request: GenerationRequest, most: int) -> dict[str, Any]:
    """How long the answer may be and has to be, and what must not come; `lacks.check` has refused what there is not."""
    found: dict[str, Any] = {"n_predict" if kind == "llama.cpp" else "max_tokens": most}
    if request.min_new_tokens:
        found["min_tokens"] = request.min_new_tokens
    if kind == "exlchat":
        # On there where nothing is said.
        found["stop_repeating"] = request.stop_repeating
    if request.banned:
        found["banned_strings"] = list(request.banned)
    if request.thoughts is not None and request.thoughts.tokens is not None:
        found["thinking_token_budget"] = request.thoughts.tokens
    return found


def sampling_of(kind: ServerKind) -> frozenset[str]:
    """Our names of the values that such a server takes."""
    biases: frozenset[str] = frozenset() if kind == "ollama" else frozenset({"logit_bias", "banned_tokens"})
    return frozenset(SAMPLING[kind]) | _PER_SERVER.get(kind, frozenset()) | biases


def constraints_of(kind: ServerKind) -> frozenset[str]:
    return _CONSTRAINTS[kind]

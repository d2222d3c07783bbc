"""What cannot be had of a server: why, and what would mend it. The one place that says so."""

from __future__ import annotations

from dataclasses import fields as fields_of

from exlchat.llm.constraint import KINDS
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import SamplingSettings
from exlchat.remote.fields import constraints_of, sampling_of
from exlchat.remote.server import Server

NO_SCORES = "a server does not tell how likely a given text is; load a model here"
_HERE = "load a model here"
_WISHES = frozenset(one.name for one in fields_of(GenerationRequest)) - {"draft"}
"""Of a request. Who guesses ahead changes no answer, so that it is not refused."""


def lacks_of(server: Server, place: str) -> dict[str, str]:
    """As of `ModelInfo.lacks`. `place` is where it is."""
    kind = server.kind
    this = f"this server ({kind})"
    return {
        **_of_any(this),
        "serving": f"this model is a server's already; point programs to {place}",
        **_of_some(server, this),
        **{
            form: f"{this} cannot hold an answer to a {form.replace('_', ' ')}; {_HERE}"
            for form in KINDS
            if form not in constraints_of(kind)
        },
        **{
            control.name: f"{this} does not know {control.name}; {_HERE}"
            for control in fields_of(SamplingSettings)
            if control.name not in sampling_of(kind)
        },
    }


def _of_any(this: str) -> dict[str, str]:
    """What no server has, as far as it is asked."""
    guidance = f"{this} does not lean away from a negative prompt; {_HERE}"
    return {
        "heal": f"{this} does not finish a word that was cut; {_HERE}",
        "draft": f"{this} chooses itself who guesses tokens ahead; {_HERE}",
        "cache": f"{this} does not tell what it keeps of prompts; {_HERE}",
        "guidance_ids": guidance,
        "guidance_scale": guidance,
    }


def _of_some(server: Server, this: str) -> dict[str, str]:
    kind, level = server.kind, server.level
    better = "leave out --remote-level" if kind == "llama.cpp" else f"take llama-server, or {_HERE}"
    probabilities = f"{this}, asked by {level}, tells no probabilities of tokens; {better}"
    told = kind == "llama.cpp" and level == "ids"
    lacking = {
        "alternatives": (not told, probabilities),
        "probabilities": (not told, probabilities),
        "banned": (
            kind not in ("exlchat", "tabbyapi"),
            f"{this} bans no texts; take exlchat serve or TabbyAPI, or {_HERE}",
        ),
        "begun": (
            not server.prefills,
            f"{this} cannot go on with an answer that was begun; have it given again, or {_HERE}",
        ),
        "min_new_tokens": (
            kind not in ("exlchat", "vllm", "tabbyapi"),
            f"{this} knows no least length; set min_tokens to 0, or {_HERE}",
        ),
        "thinking_budget": (kind != "exlchat", f"{this} knows no budget of thoughts; leave it out, or {_HERE}"),
        "format": (
            level == "messages",
            f"{this} takes messages and has the prompt format itself; start with --remote-level text, or {_HERE}",
        ),
        "thinking": (
            kind == "openai" and level == "messages",
            f"{this} cannot be told whether to think; {_HERE}",
        ),
    }
    return {name: reason for name, (lacks, reason) in lacking.items() if lacks}


def check(lacks: dict[str, str], request: GenerationRequest) -> None:
    """Raises `RequestError` for what is wished for and cannot be had; of sampling, `fields.py` does."""
    asked = [name for name in lacks if name in _WISHES and getattr(request, name)]
    if request.constraint is not None and request.constraint.kind in lacks:
        asked.append(request.constraint.kind)
    if request.thoughts is not None and request.thoughts.tokens is not None and "thinking_budget" in lacks:
        asked.append("thinking_budget")
    if asked:
        raise RequestError(lacks[asked[0]])

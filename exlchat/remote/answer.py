"""A request as a server wants it, and what it says as events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.llm.events import FinishReason, PlaceChances, PrefillProgress, TokenChance
from exlchat.llm.request import GenerationRequest, Rank, RequestError
from exlchat.remote.address import RemoteError
from exlchat.remote.fields import constraint_fields, length_fields, named_by_ids, sampling_fields
from exlchat.remote.server import Server
from exlchat.untrusted.text import one_line

_MOST_ALTERNATIVES = 100
_LEAST_LOGARITHM = -1e300
_ROUNDING = 1e-3
"""By so much the logarithm of a certain token may be above 0."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them; `None` where it does not say."""

    prompt: int | None = None
    cached: int | None = None
    new: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event of a stream adds. `thought` is what the model thinks, told apart by the server."""

    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    chances: tuple[PlaceChances, ...] = ()
    progress: PrefillProgress | None = None
    reason: FinishReason | None = None
    usage: Usage | None = None


def asked(server: Server, request: GenerationRequest, seed: int) -> tuple[str, dict[str, Any]]:
    """The path and the body that ask for an answer.

    Raises:
        RequestError: the server cannot do what is asked for.
    """
    if request.constraint_from:
        raise RequestError("a server cannot hold a part of an answer to a constraint; leave it out, or hold all of it")
    room = server.context - len(request.prompt_ids)
    most = max(min(room, request.max_new_tokens) if request.max_new_tokens is not None else room, 1)
    sampling = request.sampling
    if server.level == "ids" and server.kind != "exlchat":
        sampling = named_by_ids(sampling, server.vocabulary.encode)
    body: dict[str, Any] = {
        "stream": True,
        "seed": seed,
        **sampling_fields(server.kind, sampling, server.context),
        **constraint_fields(server.kind, request.constraint, chat=server.level == "messages"),
        **length_fields(server.kind, request, most),
    }
    if server.kind == "exlchat" and request.rank > Rank.API:
        # vLLM knows it as well, and refuses it unless it was started to.
        body["priority"] = request.rank - Rank.API
    if server.kind == "openai" and server.level == "messages":
        # Their newer models know one of the two alone, and everybody's older ones the other.
        body.pop("max_tokens") if request.max_new_tokens is None else None
    stops = [one for one in request.stop if isinstance(one, str) and one]
    if stops:
        body["stop"] = stops[:4] if server.kind == "openai" else stops
    if server.kind == "llama.cpp" and server.level != "messages":
        return "/completion", body | _llama(server, request)
    body |= {"model": server.model, "stream_options": {"include_usage": True}}
    if server.level == "messages":
        return "/v1/chat/completions", body | _messages(server, request)
    prompt: object = list(request.prompt_ids)
    if server.level == "text":
        prompt = server.vocabulary.decode(request.prompt_ids, special=True)
    body |= {"prompt": prompt, "add_special_tokens": False}
    if server.level == "ids":
        body["return_token_ids"] = True
    return "/v1/completions", body


def _llama(server: Server, request: GenerationRequest) -> dict[str, Any]:
    prompt: object = list(request.prompt_ids)
    if server.level == "text":
        prompt = server.vocabulary.decode(request.prompt_ids, special=True)
    found: dict[str, Any] = {
        "prompt": prompt,
        "return_tokens": True,
        "cache_prompt": True,
        "return_progress": True,
        "timings_per_token": False,
    }
    if request.alternatives:
        found["n_probs"] = min(request.alternatives, _MOST_ALTERNATIVES)
    return found


def _messages(server: Server, request: GenerationRequest) -> dict[str, Any]:
    """What `MESSAGES_TEMPLATE` has written, read again; what was begun of the answer stands behind it."""
    cut = len(request.prompt_ids) - request.begun
    written = server.vocabulary.decode(request.prompt_ids[:cut], special=True)
    begun = server.vocabulary.decode(request.prompt_ids[cut:], special=True)
    found: dict[str, Any] = {"messages": messages_of(written)}
    told = _variables(written)
    if told and server.kind in ("llama.cpp", "vllm", "exlchat", "tabbyapi"):
        found["chat_template_kwargs"] = told
    elif told and server.kind == "ollama":
        found["think"] = told["enable_thinking"]
    if begun:
        found["messages"].append({"role": "assistant", "content": begun})
        if server.kind in ("vllm", "exlchat"):
            found |= {"continue_final_message": True, "add_generation_prompt": False}
    return found


def messages_of(written: str) -> list[dict[str, str]]:
    """The messages in a text of `MESSAGES_TEMPLATE`.

    Raises:
        RequestError: it is none, because another prompt format was chosen.
    """
    return [one for one in _lines(written) if "role" in one]


def _variables(written: str) -> dict[str, Any]:
    return next((one for one in _lines(written) if "enable_thinking" in one), {})


def _lines(written: str) -> Iterator[dict[str, Any]]:
    for line in written.splitlines() if "\n" in written else [written]:
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RequestError(
                "this server takes messages and has the prompt format itself; take --template model, or level text"
            )
        yield found


class ChunkReader:
    """Reads the events of one stream. Raises `RemoteError` for what no server of its kind says."""

    def __init__(self, server: Server, request: GenerationRequest, place: Callable[[], str]) -> None:
        self._server = server
        self._request = request
        self._place = place
        self._native = server.kind == "llama.cpp" and server.level != "messages"

    def read(self, event: Mapping[str, Any]) -> Chunk:
        return self._llama(event) if self._native else self._openai(event)

    def _llama(self, event: Mapping[str, Any]) -> Chunk:
        told = event.get("prompt_progress")
        progress = None
        if isinstance(told, Mapping):
            total, done, cached = (_count(told.get(name)) or 0 for name in ("total", "processed", "cache"))
            progress = PrefillProgress(min(done, total), total, min(cached, total))
        places = event.get("completion_probabilities")
        return Chunk(
            self._said(event.get("content", "")),
            # Beside progress stands an id that is none of the answer.
            ids=self._checked(event.get("tokens") or ()) if self._server.level == "ids" and progress is None else (),
            chances=tuple(self._chances(one) for one in places) if isinstance(places, list) else (),
            progress=progress,
            reason=_llama_reason(event, self._request) if event.get("stop") is True else None,
            usage=_llama_usage(event) if event.get("stop") is True else None,
        )

    def _openai(self, event: Mapping[str, Any]) -> Chunk:
        choices = event.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise self._wrong("choices that are no list")
        usage = _usage(event.get("usage"))
        if not choices:
            return Chunk(usage=usage)
        if not all(isinstance(one, Mapping) for one in choices):
            raise self._wrong("a choice that is no object")
        # One answer is asked for; another one beside it is none of it.
        choice = next((one for one in choices if one.get("index", 0) == 0), None)
        if choice is None:
            return Chunk(usage=usage)
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, Mapping):
            raise self._wrong("a delta that is no object")
        text = choice.get("text") if "text" in choice else delta.get("content")
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return Chunk(
            self._said(text),
            self._said(thought if isinstance(thought, str) else ""),
            self._checked(choice.get("token_ids") or ()) if self._server.level == "ids" else (),
            reason=self._reason(choice.get("finish_reason")),
            usage=usage,
        )

    def _reason(self, said: object) -> FinishReason | None:
        match said:
            case None | "":
                return None
            case "length":
                return "context_full" if self._request.max_new_tokens is None else "max_new_tokens"
            case "stop" | "eos" | "eos_token" | "stop_sequence" | "tool_calls" | "function_call":
                return "stop_token"
        shown = one_line(str(said), 60)
        raise RemoteError(f"{self._place()}: has ended the answer before its end ({shown}); what has come is kept")

    def _said(self, text: object) -> str:
        if text is None:
            return ""
        if not isinstance(text, str):
            raise self._wrong("text that is none")
        # Half a pair of surrogates, which JSON can spell, is no character and could not be written down.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _checked(self, ids: Sequence[object]) -> tuple[int, ...]:
        size = self._server.vocabulary.size
        if not isinstance(ids, list | tuple) or not all(type(one) is int and 0 <= one < size for one in ids):
            raise self._wrong("ids that the model does not have")
        return tuple(ids)

    def _chances(self, place: object) -> PlaceChances:
        if not isinstance(place, Mapping):
            raise self._wrong("probabilities that are none")
        listed = place.get("top_logprobs")
        size = self._server.vocabulary.size
        top = [chance for one in (listed if isinstance(listed, list) else ()) if (chance := _chance(one, size))]
        ranked = tuple(TokenChance(one, value, rank) for rank, (one, value) in enumerate(top, 1))
        taken = _chance(place, size)
        rank = next((one.rank for one in ranked if taken and one.token_id == taken[0]), len(ranked) + 1)
        return PlaceChances(None if taken is None else TokenChance(*taken, rank), ranked)

    def _wrong(self, what: str) -> RemoteError:
        return RemoteError(f"{self._place()}: sends {what}; it is no server of this kind, or it is broken")


def _chance(one: object, size: int) -> tuple[int, float] | None:
    """A token and its logarithm; `None` where there is no such token, or no probability has that logarithm."""
    if not isinstance(one, Mapping):
        return None
    id_, value = one.get("id"), one.get("logprob")
    if type(id_) is not int or not 0 <= id_ < size or not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return (id_, min(float(value), 0.0)) if _LEAST_LOGARITHM <= value <= _ROUNDING else None


def _llama_reason(event: Mapping[str, Any], request: GenerationRequest) -> FinishReason:
    match event.get("stop_type"):
        case "limit":
            return "context_full" if request.max_new_tokens is None or event.get("truncated") else "max_new_tokens"
        case "word":
            return "stop_string"
    return "stop_token"


def _usage(told: object) -> Usage | None:
    if not isinstance(told, Mapping):
        return None
    details = told.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    return Usage(_count(told.get("prompt_tokens")), cached, _count(told.get("completion_tokens")))


def _llama_usage(event: Mapping[str, Any]) -> Usage:
    timings = event.get("timings")
    known = timings if isinstance(timings, Mapping) else {}
    read, cached = _count(known.get("prompt_n")), _count(known.get("cache_n"))
    whole = _count(event.get("tokens_evaluated"))
    if cached is None and whole is not None and read is not None:
        cached = max(whole - read, 0)
    return Usage(whole, cached, _count(event.get("tokens_predicted")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**40 else None

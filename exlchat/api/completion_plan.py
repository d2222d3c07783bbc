"""A body of `/v1/completions` and a voice -> what the engine is asked: prompts as they are, without any template."""

from __future__ import annotations

from dataclasses import dataclass

from exlchat.api.completion_body import CompletionBody, Prompt
from exlchat.api.completion_reply import PromptTold
from exlchat.api.errors import bad
from exlchat.api.filling import filling_ids, filling_marks
from exlchat.api.plan import require_readable, wished
from exlchat.api.voice import Voice
from exlchat.llm.port import CanScore, Engine
from exlchat.llm.request import GenerationRequest, ScoreRequest


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """Requests of answers, prompt by prompt, and behind them those of prompts whose probabilities are told."""

    prompts: tuple[PromptTold, ...]
    requests: tuple[GenerationRequest | ScoreRequest, ...]
    stops: tuple[str | int, ...]


def plan_completion(engine: Engine, body: CompletionBody, voice: Voice) -> CompletionPlan:
    """Raises `ApiError` or `RequestError` as `plan.plan_chat` does."""
    for prompt in body.prompts:
        if isinstance(prompt, str):
            require_readable(engine, "prompt", len(prompt))
    require_readable(engine, "suffix", len(body.suffix))
    scored = body.echo and body.wishes.top is not None
    if scored and not isinstance(engine, CanScore):
        raise bad("echo", "echo: this model tells no probabilities of prompts; leave out logprobs")
    _, speech = body.wishes.with_voice(voice)
    # A model that is trained on whole files would begin the next one.
    stops = (*speech.stop, *(filling_marks(engine) if body.suffix else ()))
    prompts = tuple(_told(engine, prompt, body, scored=scored) for prompt in body.prompts)
    answers: list[GenerationRequest | ScoreRequest] = []
    for one in prompts:
        answers += wished(engine, GenerationRequest(one.ids, stop=stops), body.wishes, voice, "prompt")
    top = max(body.wishes.top or 0, 1)
    owner, rank = body.wishes.owner, body.wishes.rank
    scores = [ScoreRequest(one.ids, 1, top, owner, rank) for one in prompts if one.scored]
    return CompletionPlan(prompts, (*answers, *scores), stops)


def _told(engine: Engine, prompt: Prompt, body: CompletionBody, *, scored: bool) -> PromptTold:
    if not isinstance(prompt, str):
        _check(engine, prompt)
        return PromptTold(prompt, engine.decode(prompt, special=True) if body.echo else "", scored=scored)
    if body.suffix:
        front = engine.encode(engine.info.bos_token) if body.bos and engine.info.bos_token else []
        return PromptTold((*front, *filling_ids(engine, prompt, body.suffix)), "")
    ids = prompt_ids_of(engine, prompt, bos=body.bos)
    unshown = len(ids) - len(prompt_ids_of(engine, prompt, bos=False))
    return PromptTold(ids, prompt if body.echo else "", unshown, scored=scored)


def prompt_ids_of(engine: Engine, prompt: str, *, bos: bool) -> tuple[int, ...]:
    """Of a text, behind the token that the model's texts begin with if `bos`. Raises `ApiError`: it is empty."""
    first = engine.info.bos_token
    # A template of the client's own may have written it.
    front = engine.encode(first) if bos and first and not prompt.startswith(first) else []
    ids = (*front, *engine.encode(prompt))
    if not ids:
        raise bad("prompt", "the prompt is empty; it needs at least one token")
    return ids


def _check(engine: Engine, ids: tuple[int, ...]) -> None:
    wrong = next((one for one in ids if not 0 <= one < engine.info.vocab_size), None)
    if wrong is not None:
        raise bad("prompt", f"prompt holds id {wrong}; the model has ids from 0 to {engine.info.vocab_size - 1}")

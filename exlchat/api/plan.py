"""A body and a voice -> what the engine is asked: one request for each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from exlchat.api.chat_body import ChatBody
from exlchat.api.chat_model import ChatModel
from exlchat.api.errors import bad, context_exceeded
from exlchat.api.voice import Voice
from exlchat.api.wishes import Wishes
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.answer_request import thoughts_of
from exlchat.chat.prompt.answer_ids import encode_after
from exlchat.chat.prompt.cost import shared_beginning
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import CHARACTERS_A_TOKEN, PromptMessage, most_characters, prompt_ids
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import SamplingSettings


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Requests of the answers, by their index. `said_first`: with what each begins, though nothing generates it."""

    requests: tuple[GenerationRequest, ...]
    said_first: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages as the model reads them, without the beginning of an answer."""

    messages: list[PromptMessage]
    form: PromptFormat
    ids: list[int]
    stops: tuple[str | int, ...]


def prompt_of(model: ChatModel, body: ChatBody, voice: Voice) -> ChatPrompt:
    """Renders and encodes; may take milliseconds, and of a stranger's template longer.

    Raises:
        ApiError: the template refuses the messages, or they cannot fit into the context.
    """
    require_readable(model.engine, sum(len(one.text) for one in body.messages))
    _, speech = body.wishes.with_voice(voice)
    try:
        shape = model.format(voice.template)
        form = shape.told(body.variables, speech.think)
        messages = _messages(body, voice)
        return ChatPrompt(messages, form, prompt_ids(model.engine, messages, form), shape.stops)
    except PromptError as error:
        raise bad("messages", str(error)) from None


def plan_chat(model: ChatModel, body: ChatBody, voice: Voice) -> ChatPlan:
    """Raises as `prompt_of`, besides:

    ApiError: there is no room for an answer, or wishes contradict each other.
    RequestError: the engine cannot do what is wished for.
    """
    engine = model.engine
    sampling, speech = body.wishes.with_voice(voice)
    prompt = prompt_of(model, body, voice)
    messages, form = prompt.messages, prompt.form
    begun, said_first = _begun(engine, body, speech)
    try:
        request = GenerationRequest(
            prompt_ids=(*prompt.ids, *begun),
            stop=(*speech.stop, *prompt.stops),
            beginning=shared_beginning(engine, messages, form),
            begun=len(begun),
            heal=speech.heal and bool(begun),
            thoughts=thoughts_of(
                engine, model.marks(form, messages), speech, begun=engine.decode(begun) if begun else ""
            ),
            guidance_ids=_guidance(engine, messages, form, sampling=sampling, speech=speech, begun=begun),
        )
    except PromptError as error:
        raise bad("messages", str(error)) from None
    return ChatPlan(wished(engine, request, body.wishes, voice), said_first)


def require_readable(engine: Engine, characters: int) -> None:
    """Refuses what cannot fit before it is encoded, which takes minutes of megabytes and cannot be stopped."""
    if characters > most_characters(engine.info.max_seq_len):
        raise context_exceeded(characters // CHARACTERS_A_TOKEN, engine.info.max_seq_len)


def wished(engine: Engine, request: GenerationRequest, wishes: Wishes, voice: Voice) -> tuple[GenerationRequest, ...]:
    """A request of a prompt, as it is wished for, once for each answer.

    Raises:
        ApiError: there is no room for an answer, or wishes contradict each other.
        RequestError: the engine cannot do what is wished for.
    """
    sampling, speech = wishes.with_voice(voice)
    prompt, context, most = len(request.prompt_ids), engine.info.max_seq_len, wishes.most(voice)
    if prompt + (most != 0) > context:
        raise context_exceeded(prompt, context)
    room = context - prompt if most is None else min(most, context - prompt)
    found = replace(
        request,
        sampling=sampling,
        max_new_tokens=most,
        owner=wishes.owner,
        banned=speech.ban,
        min_new_tokens=room if wishes.to_the_end else min(speech.min_tokens, room),
        constraint=speech.constraint,
        stop_repeating=speech.stop_repeating,
        # Of one alternative at least the engine tells the token's own probability.
        alternatives=0 if wishes.top is None else max(wishes.top, 1),
        draft=speech.drafted_by(draft_model=engine.capabilities.draft_model),
    )
    engine.check(found)
    return tuple(replace(found, seed=seed) for seed in wishes.seeds(voice))


def _messages(body: ChatBody, voice: Voice) -> list[PromptMessage]:
    said = body.messages[:-1] if body.goes_on else body.messages
    found = [PromptMessage(one.role, one.text) for one in said]
    if not voice.system:
        return found
    if found and found[0].role == "system":
        return [PromptMessage("system", f"{voice.system}\n\n{found[0].text}"), *found[1:]]
    return [PromptMessage("system", voice.system), *found]


def _begun(engine: Engine, body: ChatBody, speech: AnswerOptions) -> tuple[tuple[int, ...], str]:
    """Ids that the answer begins with, and their text where the client has not written it."""
    text = body.messages[-1].text if body.goes_on else speech.begin
    ids = tuple(encode_after(engine, text)) if text else ()
    return ids, "" if body.goes_on else text


def _guidance(
    engine: Engine,
    messages: Sequence[PromptMessage],
    form: PromptFormat,
    *,
    sampling: SamplingSettings,
    speech: AnswerOptions,
    begun: Sequence[int],
) -> tuple[int, ...]:
    """The prompt to lean away from, with another system prompt or none; empty without guidance."""
    if sampling.guidance_scale == 1.0:
        return ()
    told = [one for one in messages if one.role != "system"]
    if speech.negative:
        told.insert(0, PromptMessage("system", speech.negative))
    return (*prompt_ids(engine, told, form), *begun)

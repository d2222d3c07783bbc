"""A body and a voice -> what the engine is asked: one request for each answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from exlchat.api.chat_body import ChatBody
from exlchat.api.chat_model import ChatModel
from exlchat.api.errors import bad, context_exceeded
from exlchat.api.said import Said
from exlchat.api.tools.calling import call_of
from exlchat.api.tools.prompt import ToolPrompt, told
from exlchat.api.tools.reading import CallReader
from exlchat.api.turn import Turn
from exlchat.api.voice import Voice
from exlchat.api.wishes import Wishes
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.answer_request import thoughts_of
from exlchat.chat.prompt.answer_ids import answer_ids, encode_after
from exlchat.chat.prompt.cost import shared_beginning
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import CHARACTERS_A_TOKEN, PromptMessage, most_characters, prompt_ids
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.events import Finished
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import SamplingSettings


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What the engine is asked.

    Args:
        requests: of the answers, by their index.
        begun: with what each of them begins, though nothing generates it.
        shown: what of that the client has sent already.
        before: the text of the message that they answer.
        calls: how calls of tools are read from them; `None` where there is nothing to be called.
    """

    requests: tuple[GenerationRequest, ...]
    begun: Said
    shown: str = ""
    before: str = ""
    calls: CallReader | None = None

    @property
    def said_first(self) -> str:
        """What the client is told before all that is generated."""
        return "" if self.shown else self.begun.text

    def said(self, finished: Finished) -> Said:
        """An answer as a whole, when it has ended."""
        begun = self.begun
        kept = begun.token_ids[: len(begun.token_ids) - finished.healed]
        return Said(begun.text + finished.text, kept + finished.token_ids, begun.marks)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages as the model reads them, without the beginning of an answer."""

    messages: list[PromptMessage]
    form: PromptFormat
    ids: list[int]
    stops: tuple[str | int, ...]
    tools: ToolPrompt


def prompt_of(model: ChatModel, body: ChatBody, voice: Voice) -> ChatPrompt:
    """Renders and encodes; may take milliseconds, and of a stranger's template longer.

    Raises:
        ApiError: the template refuses the messages, or they cannot fit into the context.
    """
    _, speech = body.wishes.with_voice(voice)
    require_readable(model.engine, "messages", _characters(body) + len(voice.system))
    for name, text in (("negative_prompt", speech.negative), ("messages", speech.begin)):
        require_readable(model.engine, name, len(text))
    try:
        shape = model.format(voice.template)
        # A call that has to come is not thought about.
        form = shape.told(body.variables, False if body.offered.forced else speech.think)
        tools = told(_messages(model, body, voice), body.offered, form, model.engine.info)
        form = replace(form, variables={**form.variables, **tools.variables})
        return ChatPrompt(tools.messages, form, prompt_ids(model.engine, tools.messages, form), shape.stops, tools)
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
    begun, shown = _begun(model, body, speech)
    try:
        marks = begun.marks or model.marks(form, messages)
        call = call_of(engine, prompt.tools, body.offered, marks)
        request = GenerationRequest(
            prompt_ids=(*prompt.ids, *begun.token_ids, *call.opening_ids),
            stop=(*speech.stop, *prompt.stops),
            beginning=shared_beginning(engine, messages, form),
            begun=len(begun.token_ids),
            heal=speech.heal and bool(begun.token_ids),
            thoughts=None if body.offered.forced else thoughts_of(engine, marks, speech, begun=begun.text),
            constraint=call.constraint,
            constraint_from=call.constraint_from,
            guidance_ids=_guidance(engine, messages, form, sampling=sampling, speech=speech, begun=begun.token_ids),
        )
    except PromptError as error:
        raise bad("messages", str(error)) from None
    requests = wished(engine, request, body.wishes, voice, "messages")
    return ChatPlan(requests, replace(begun, marks=marks), shown, _before(body), call.reader)


def require_readable(engine: Engine, field: str, characters: int) -> None:
    """Refuses what cannot fit before it is encoded, which takes minutes of megabytes and cannot be stopped."""
    if characters > most_characters(engine.info.max_seq_len):
        raise context_exceeded(field, characters // CHARACTERS_A_TOKEN, engine.info.max_seq_len)


def wished(
    engine: Engine, request: GenerationRequest, wishes: Wishes, voice: Voice, field: str
) -> tuple[GenerationRequest, ...]:
    """A request of a prompt, as it is wished for, once for each answer. `field` is what the prompt was made of.

    Raises:
        ApiError: there is no room for an answer, or wishes contradict each other.
        RequestError: the engine cannot do what is wished for.
    """
    sampling, speech = wishes.with_voice(voice)
    prompt, context, most = len(request.prompt_ids), engine.info.max_seq_len, wishes.most(voice)
    if prompt + (most != 0) > context:
        raise context_exceeded(field, prompt, context)
    room = context - prompt if most is None else min(most, context - prompt)
    found = replace(
        request,
        sampling=sampling,
        max_new_tokens=most,
        owner=wishes.owner,
        rank=wishes.rank,
        banned=speech.ban,
        min_new_tokens=room if wishes.to_the_end else min(speech.min_tokens, room),
        # What the whole answer has to be goes before what a call in it has to be.
        constraint=speech.constraint or request.constraint,
        constraint_from=() if speech.constraint is not None else request.constraint_from,
        stop_repeating=speech.stop_repeating,
        # Of one alternative at least the engine tells the token's own probability.
        alternatives=0 if wishes.top is None else max(wishes.top, 1),
        draft=speech.drafted_by(draft_model=engine.capabilities.draft_model),
    )
    engine.check(found)
    return tuple(replace(found, seed=seed) for seed in wishes.seeds(voice))


def _characters(body: ChatBody) -> int:
    """Of all that a template writes out; JSON is hardly longer than what a template makes of it."""
    calls = [call.arguments for one in body.messages for call in one.calls]
    tools = [tool.as_told() for tool in body.offered.told]
    told = len(json.dumps([calls, tools], ensure_ascii=False)) if calls or tools else 0
    return told + sum(len(one.text) + len(one.name) for one in body.messages)


def _messages(model: ChatModel, body: ChatBody, voice: Voice) -> list[tuple[Turn, PromptMessage]]:
    """What the client sent, and as what it goes into the prompt: answers that were given here as they were given."""
    found: list[tuple[Turn, PromptMessage]] = []
    for number, one in enumerate(body.messages[:-1] if body.goes_on else body.messages):
        said = _said(model, body, number)
        message = (
            PromptMessage(one.role, one.text)
            if said is None
            else PromptMessage(one.role, said.text, said.token_ids, said.marks)
        )
        found.append((one, message))
    if not voice.system:
        return found
    if found and found[0][0].role == "system":
        text, found = f"{voice.system}\n\n{found[0][0].text}", found[1:]
    else:
        text = voice.system
    return [(Turn("system", text), PromptMessage("system", text)), *found]


def _said(model: ChatModel, body: ChatBody, number: int) -> Said | None:
    one = body.messages[number]
    if one.role != "assistant":
        return None
    return model.said.find(model.engine.info.path, body.messages[number - 1].text if number else "", one.text)


def _before(body: ChatBody) -> str:
    number = len(body.messages) - 1 - body.goes_on
    return body.messages[number].text if number >= 0 else ""


def _begun(model: ChatModel, body: ChatBody, speech: AnswerOptions) -> tuple[Said, str]:
    """With what the answer begins, and what of it the client has sent."""
    shown = body.messages[-1].text if body.goes_on else ""
    said = _said(model, body, len(body.messages) - 1) if shown else None
    if said is not None and said.text.endswith(shown):
        return replace(said, token_ids=answer_ids(model.engine, said.text, said.token_ids)), shown
    text = shown or speech.begin
    return Said(text, tuple(encode_after(model.engine, text)) if text else (), None), shown


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

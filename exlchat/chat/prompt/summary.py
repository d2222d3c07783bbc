"""What the model is told of messages that it no longer sees: a summary that it writes itself, before the answer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from exlchat.chat.model import Message
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids, prompt_text
from exlchat.chat.prompt.stop_conditions import stop_conditions
from exlchat.chat.prompt.thinking import THINK, opens_thinking, split_stored
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.turn_events import Summarising
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.port import Cancellation, Engine, TextModel
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import GREEDY
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts

SUMMARY_HEAD = "Summary of the earlier conversation, which you no longer see:"
"""Stands before a summary in a prompt."""

LONGEST_SUMMARY = 512
_SUMMARY_SHARE = 1 / 8
_HEAD_SLACK = 16
"""Tokens that line breaks around a summary and encoding its text anew may cost."""
_SMALLEST_PART = 32
"""Tokens of conversation that a part must have room for; below that the summary would be all instruction."""
_CHARACTERS_PER_TOKEN = 8
"""More than the text of a part has; bounds how much is encoded to find out."""


class SummaryCancelled(Exception):  # noqa: N818 - a wish of the user, not a fault
    """The user stopped the turn during the summary. `finished` is the engine's last event, without the text."""

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        super().__init__("stopped during the summary")


def summary_tokens(max_seq_len: int) -> int:
    return min(LONGEST_SUMMARY, int(max_seq_len * _SUMMARY_SHARE))


def summary_room(engine: Engine) -> int:
    return summary_tokens(engine.info.max_seq_len) + len(engine.encode(SUMMARY_HEAD)) + _HEAD_SLACK


def summary_possible(engine: Engine, form: PromptFormat) -> bool:
    limit = summary_tokens(engine.info.max_seq_len)
    asked = prompt_ids(engine, [PromptMessage("user", _request("", "", limit))], form)
    return len(asked) + 2 * limit + _SMALLEST_PART <= engine.info.max_seq_len


def with_summary(
    engine: TextModel, messages: Sequence[PromptMessage], summary: str, form: PromptFormat
) -> list[PromptMessage] | None:
    """`messages` with a summary behind the system prompt's text; `None` when the format shows it nowhere.

    Where the format refuses or ignores system messages, it stands before what the user said first.
    """
    told = f"{SUMMARY_HEAD}\n{summary}"
    for placed in _placed(messages, told):
        try:
            rendered = prompt_text(engine, placed, form)
        except PromptError:
            continue
        if _words(told) in _words(rendered):
            return placed
    return None


def _placed(messages: Sequence[PromptMessage], told: str) -> Iterator[list[PromptMessage]]:
    """`messages` with a text in each place that it may take, the best one first."""
    if messages[0].role == "system":
        yield [replace(messages[0], text=f"{messages[0].text}\n\n{told}"), *messages[1:]]
    else:
        yield [PromptMessage("system", told), *messages]
    place = next((place for place, message in enumerate(messages) if message.role == "user"), None)
    if place is not None:
        said = replace(messages[place], text=f"{told}\n\n{messages[place].text}")
        yield [*messages[:place], said, *messages[place + 1 :]]


def _words(text: str) -> str:
    """A text without its white space, which templates change."""
    return " ".join(text.split())


def summarise(
    engine: Engine,
    form: PromptFormat,
    messages: Sequence[Message],
    before: str,
    cancellation: Cancellation,
    *,
    keep_pages: bool = True,
) -> Generator[Summarising, None, str | None]:
    """Have the model summarise `messages`, and `before`, a summary of what came before them ("" if there is none).

    What does not fit into the context at once is summarised in parts, each with the summary of those before it.
    `keep_pages` is as of `GenerationRequest`.

    Returns the summary, "" when the model gave none; `None` when the context is too small for making one.

    Raises:
        SummaryCancelled: the user stopped it.
        PromptError: the format cannot take the request.
        RequestError: the engine refuses.
    """
    text = "\n\n".join(f"{message.role.capitalize()}: {_said_by(message, form).strip()}" for message in messages)
    limit = summary_tokens(engine.info.max_seq_len)
    room = engine.info.max_seq_len - limit
    stop = stop_conditions(engine, form)
    marks = _marks(engine, form)
    summary = before
    while text:

        def ids_of(part: str, told: str = summary) -> list[int]:
            return prompt_ids(engine, [PromptMessage("user", _request(told, part, limit))], form)

        most = (room - len(ids_of(""))) * _CHARACTERS_PER_TOKEN
        if most < _SMALLEST_PART * _CHARACTERS_PER_TOKEN:
            return None
        part = _beginning(text[:most], lambda part: len(ids_of(part)) <= room, whole=len(text) <= most)
        if not part:
            return None
        text = text[len(part) :]
        request = GenerationRequest(
            tuple(ids_of(part)),
            sampling=GREEDY,
            stop=stop,
            max_new_tokens=limit,
            thoughts=Thoughts(marks),
            keep_pages=keep_pages,
        )
        # Thoughts that filled the whole summary are none.
        summary = (yield from _said(engine, request, cancellation)).strip() or summary
    return summary


def _said_by(message: Message, form: PromptFormat) -> str:
    if message.role != "assistant":
        return message.text
    recorded = message.record.thinking if message.record is not None else None
    return split_stored(message.text, recorded, form.thinking).answer


def _request(before: str, part: str, tokens: int) -> str:
    pieces = [
        "Summarise the conversation below, so that the assistant can go on with it without seeing it: what the user "
        "wants, names, numbers, decisions, open questions. Answer with the summary alone, in the language of the "
        f"conversation, in at most {tokens // 2} words."
    ]
    if before:
        pieces.append(f"What came before it, as a summary to be included:\n{before}")
    return "\n\n".join([*pieces, f"The conversation:\n{part}"])


def _beginning(text: str, fits: Callable[[str], bool], *, whole: bool) -> str:
    """The longest beginning of `text` that fits, to the end of a paragraph or of a word where that loses little."""
    if whole and fits(text):
        return text
    length = bisect_right(range(1, len(text) + 1), False, key=lambda size: not fits(text[:size]))
    part = text[:length]
    for gap in ("\n\n", " "):
        end = part.rfind(gap) + len(gap)
        if end > length / 2:
            return part[:end]
    return part


def _said(engine: Engine, request: GenerationRequest, cancellation: Cancellation) -> Generator[Summarising, None, str]:
    yield Summarising()
    said: list[str] = []
    finished: Finished | None = None
    with cancellation.over(engine.generate(request)) as events:
        for event in events:
            if isinstance(event, Finished):
                finished = event
                continue
            if isinstance(event, TextDelta) and event.channel == "answer":
                said.append(event.text)
            yield Summarising()
    if finished is None:
        return ""
    if finished.reason == "cancelled":
        raise SummaryCancelled(replace(finished, text="", token_ids=()))
    return "".join(said)


def _marks(engine: Engine, form: PromptFormat) -> ThinkingMarks:
    """How thoughts are marked, and whether a prompt ends inside them: the template has opened them, not the model."""
    marks = form.thinking or THINK
    return replace(marks, opened=opens_thinking(prompt_text(engine, [PromptMessage("user", "x")], form), marks))

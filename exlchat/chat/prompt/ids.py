"""Messages -> prompt ids, so that nothing a message says becomes a control token and no answer is computed twice.

1. The text of a special token inside a message stays text, whoever wrote it.
2. An answer of the model is represented by the ids it generated, not by a new encoding of its text, which may differ.
   The prompt of the next turn then begins with exactly the prompt and the answer of this one, which the cache holds.
   Of an answer with thoughts, these are left out first, and the ids behind them stand for the rest.

A template is a program, so where a message ended up is found out by experiment: the conversation is rendered again
with marks in the place of messages. Where the marked text, with the messages put back, is the real text, the places
are known; where it is not, the message is simply encoded with the text around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from exlchat.chat.model import Message
from exlchat.chat.personas.lorebook import text_for_model
from exlchat.chat.prompt.answer_ids import agreement, answer_ids, encode_after, ids_behind
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.note import Note
from exlchat.chat.prompt.thinking import split_stored
from exlchat.chat.prompt_format import MARK, PromptFormat
from exlchat.llm.port import TextModel
from exlchat.llm.thought_splitter import ThinkingMarks

_NUMBER = "([0-9]{1,9})"
"""Between two marks."""

OPENER = "Begin."
"""What the user says, for the model alone, before a greeting: many templates want somebody to answer."""

CHARACTERS_A_TOKEN = 32
"""More than any text has on average; single tokens of white space are longer."""

_FEWEST_CHARACTERS = 1_000_000
"""So many are encoded within seconds, whatever the context."""


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message.

    Args:
        token_ids: those of an answer, in order.
        thinking: the marks under which it was given.
        more: what the template is told of it beside role and content, as calls of tools; without special tokens.
    """

    role: str
    text: str
    token_ids: tuple[int, ...] = ()
    thinking: ThinkingMarks | None = None
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)


def prompt_messages(branch: Sequence[Message], note: Note | None = None) -> list[PromptMessage]:
    """What of a branch goes into the prompt: the newest system message first, then everybody else in order.

    Messages of the user that follow each other (the answer between them came to nothing) become one, because many
    templates refuse anything but turns. For the same reason the user says a word before an answer that follows nothing
    of theirs, as the greeting of a persona. What was left out is not seen, but for what is to be answered.
    A `note` goes with the message of the user beside its place, because few templates take anything between turns.
    """
    branch = [message for message in branch if not message.left_out or message is branch[-1]]
    system = [message.text for message in branch if message.role == "system"]
    found = [PromptMessage("system", system[-1])] if system and system[-1].strip() else []
    said = [message for message in branch if message.role != "system"]
    place = None if note is None else note.place([message.role for message in said])
    for number, message in enumerate(said):
        noted = note.text if note is not None and number == place else ""
        if message.role == "assistant" and (not found or found[-1].role != "user"):
            found.append(PromptMessage("user", _joined(noted, OPENER)))
        elif message.role == "assistant" and noted:
            found[-1] = PromptMessage("user", _joined(found[-1].text, noted))
        # A persona's lore that was told with a message of the user stands before it.
        text = _joined(noted, text_for_model(message)) if message.role == "user" else message.text
        if message.role == "user" and found and found[-1].role == "user":
            found[-1] = PromptMessage("user", f"{found[-1].text}\n\n{text}")
        else:
            marks = message.record.thinking if message.record is not None else None
            found.append(PromptMessage(message.role, text, message.token_ids, marks))
    if note is not None and place == len(said) and said:
        found[-1] = PromptMessage("user", _joined(found[-1].text, note.text))
    return found


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def prompt_ids(
    engine: TextModel, messages: Sequence[PromptMessage], form: PromptFormat, *, add_generation_prompt: bool = True
) -> list[int]:
    """The ids of the whole prompt, BOS where the format has it.

    Raises:
        PromptError: the format cannot take these messages.
    """
    return _Prompt(engine, messages, form, add_generation_prompt).ids()


def prompt_text(
    engine: TextModel, messages: Sequence[PromptMessage], form: PromptFormat, *, add_generation_prompt: bool = True
) -> str:
    """The text of a prompt, for looking at what of it the format shows; it is not for encoding.

    Raises:
        PromptError: the format cannot take these messages.
    """
    shown = [as_shown(engine, message, form) for message in messages]
    contents = [{"role": message.role, "content": message.text, **message.more} for message in shown]
    return form.render(contents, add_generation_prompt=add_generation_prompt, **template_variables(engine))


def message_places(
    engine: TextModel, messages: Sequence[PromptMessage], form: PromptFormat, *, add_generation_prompt: bool = True
) -> list[tuple[int, int] | None]:
    """Where the text of each message begins and ends in `prompt_text`; `None` where that cannot be told.

    Raises:
        PromptError: the format cannot take these messages.
    """
    return _Prompt(engine, messages, form, add_generation_prompt).places()


def as_shown(engine: TextModel, message: PromptMessage, form: PromptFormat) -> PromptMessage:
    """`message` without its thoughts, or with them where the format keeps them; the answer keeps its own ids."""
    if message.role != "assistant" or (message.thinking or form.thinking) is None:
        return message
    parts = split_stored(message.text, message.thinking, form.thinking)
    if form.keeps_thinking:
        opened = message.thinking is not None and message.thinking.opened
        if message.thinking is None or not opened:
            return message
        # The prompt had written the mark, so neither the text nor the ids have it.
        return replace(message, text=f"{message.thinking.opening}\n{message.text}", token_ids=())
    if parts.start == 0:
        return message
    return replace(
        message, text=parts.answer, token_ids=ids_behind(engine, message.text, message.token_ids, parts.start)
    )


def most_characters(max_seq_len: int) -> int:
    """More characters than these cannot fit into a context of `max_seq_len` tokens."""
    return max(CHARACTERS_A_TOKEN * max_seq_len, _FEWEST_CHARACTERS)


def template_variables(engine: TextModel) -> dict[str, Any]:
    """What a template sees beside the messages.

    One moment for all renderings with them: a clock that moves between them would hide every place.
    """
    return {
        **engine.info.named_tokens,
        "bos_token": engine.info.bos_token,
        "eos_token": engine.info.eos_token,
        "moment": datetime.now(),
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the answer `index` stands in the rendered text."""

    start: int
    end: int
    index: int


class _Prompt:
    def __init__(
        self, engine: TextModel, messages: Sequence[PromptMessage], form: PromptFormat, add_generation_prompt: bool
    ) -> None:
        self._engine = engine
        self._messages = [as_shown(engine, message, form) for message in messages]
        self._form = form
        self._add_generation_prompt = add_generation_prompt
        self._variables = template_variables(engine)
        special = sorted({*filter(None, engine.info.special_tokens), *self._typed_marks()}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._specials = special
        self._answers = [index for index, message in enumerate(self._messages) if self._has_ids(message)]
        texts = "".join(message.text for message in self._messages) + form.source
        unused = _characters_not_in(texts)
        self._mark, self._token_mark = next(unused), next(unused)

    def _typed_marks(self) -> list[str]:
        """Added tokens in messages that the tokenizer calls ordinary, though the template marks turns by them."""
        special = self._engine.info.special_tokens
        said = "".join(message.text for message in self._messages)
        found = [token for token in self._engine.info.added_tokens if token not in special and MARK.fullmatch(token)]
        found = [token for token in found if token in said]
        frame = self._render(["x"] * len(self._messages), add_generation_prompt=True) if found else ""
        return [token for token in found if token in frame]

    def places(self) -> list[tuple[int, int] | None]:
        """Where each message's text stands in the prompt's text; `None` where it cannot be told."""
        texts = [message.text for message in self._messages]
        rendered = self._render(texts, add_generation_prompt=self._add_generation_prompt)
        found = [self._places(texts, rendered, [index]) for index in range(len(texts))]
        return [(one[0].start, one[0].end) if one else None for one in found]

    def ids(self) -> list[int]:
        texts = [message.text for message in self._messages]
        texts = self._guarded(texts, [index for index in range(len(texts)) if index not in self._answers])
        rendered, places = self._located(texts)
        found = {place.index for place in places}
        guarded = self._guarded(texts, [index for index in self._answers if index not in found])
        if guarded != texts:
            rendered, places = self._located(guarded)
        self._require_bounds(rendered)
        ids: list[int] = []
        position = 0
        for place in places:
            ids += self._encode(rendered[position : place.start], first=position == 0)
            message = self._messages[place.index]
            stripped = message.text[-1] != rendered[place.end - 1]
            ids += answer_ids(self._engine, message.text, message.token_ids, stripped=stripped)
            position = place.end
        return ids + self._encode(rendered[position:], first=position == 0)

    def _require_bounds(self, rendered: str) -> None:
        """Refuses what a template has blown up before it reaches the tokenizer, which cannot be stopped.

        A conversation may be longer than the context, and be cut to it later; what a template adds may not.
        """
        said = sum(len(message.text) for message in self._messages)
        most = most_characters(self._engine.info.max_seq_len)
        if len(rendered) > 2 * said + most:
            raise PromptError(
                f"prompt format {self._form.name} makes {len(rendered):,} characters of {said:,}; "
                "choose another template, as chatml"
            )

    def _has_ids(self, message: PromptMessage) -> bool:
        if message.role != "assistant" or not message.token_ids or not message.text.strip():
            return False
        return agreement(self._engine, message.text, message.token_ids)[0] > 0

    def _render(self, texts: Sequence[str], *, add_generation_prompt: bool) -> str:
        messages = [
            {"role": message.role, "content": text, **message.more}
            for message, text in zip(self._messages, texts, strict=False)
        ]
        return self._form.render(messages, add_generation_prompt=add_generation_prompt, **self._variables)

    # Special tokens that a message only talks about

    def _guarded(self, texts: Sequence[str], indices: Sequence[int]) -> list[str]:
        """`texts` with marks for the special tokens in those messages whose special tokens reach the prompt.

        Where they do not (a template drops the thinking of old answers, say), the template gets to see them.
        """
        guarded = list(texts)
        wanted = [index for index in indices if self._special.search(texts[index])]
        if not wanted:
            return guarded
        plain = self._special_tokens_of(guarded)
        for index in wanted:
            silent = [*guarded[:index], self._mark, *guarded[index + 1 :]]
            if self._special_tokens_of(silent) != plain:
                guarded[index] = self._special.sub(self._marked_token, texts[index])
                plain = self._special_tokens_of(guarded)
        return guarded

    def _special_tokens_of(self, texts: Sequence[str]) -> list[str]:
        return self._special.findall(self._render(texts, add_generation_prompt=self._add_generation_prompt))

    def _marked_token(self, match: re.Match[str]) -> str:
        return f"{self._token_mark}{self._specials.index(match.group())}{self._token_mark}"

    def _encode(self, text: str, *, first: bool) -> list[int]:
        """Ids of template text: its special tokens count, marked ones do not."""
        ids: list[int] = []
        for number, piece in enumerate(re.split(f"{self._token_mark}{_NUMBER}{self._token_mark}", text)):
            is_token = number % 2 == 1
            if is_token and int(piece) >= len(self._specials):
                # The template has made other digits of it, and what stood there is lost.
                raise PromptError(
                    f"prompt format {self._form.name} changes the words of messages, so special tokens in them cannot "
                    "be kept apart; choose another template, as chatml"
                )
            for part in self._halves(int(piece)) if is_token else [piece]:
                if part:
                    encode = self._engine.encode if first and not ids else partial(encode_after, self._engine)
                    ids += encode(part, special=not is_token)
        return ids

    def _halves(self, number: int) -> list[str]:
        """A special token's text; in two where the tokenizer would take it for a token though it is to be ordinary."""
        token = self._specials[number]
        if token in self._engine.info.special_tokens:
            return [token]
        return [token[: len(token) // 2], token[len(token) // 2 :]]

    # Where the answers stand

    def _located(self, texts: Sequence[str]) -> tuple[str, list[_Place]]:
        """The rendered text, and the places of the answers that were found in it, in order."""
        rendered = self._render(texts, add_generation_prompt=self._add_generation_prompt)
        places = self._places(texts, rendered, self._answers)
        if places is None:
            alone = [self._places(texts, rendered, [index]) or [] for index in self._answers]
            places = sorted(chain.from_iterable(alone), key=lambda place: place.start)
        opening = self._opening(texts, rendered) if places else ""
        return rendered, [self._widened(place, texts, rendered, opening) for place in places]

    def _places(self, texts: Sequence[str], rendered: str, indices: Sequence[int]) -> list[_Place] | None:
        """Places of the answers `indices`, or `None` when putting them back does not give `rendered`."""
        marked_texts = list(texts)
        for index in indices:
            marked_texts[index] = f"{self._mark}{index}{self._mark}"
        marked = self._render(marked_texts, add_generation_prompt=self._add_generation_prompt)
        first, *parts = re.split(f"{self._mark}{_NUMBER}{self._mark}", marked)
        numbers = [int(number) for number in parts[::2]]
        if not rendered.startswith(first) or len(set(numbers)) != len(numbers) or not set(indices).issuperset(numbers):
            return None
        places: list[_Place] = []
        position = len(first)
        for index, following in zip(numbers, parts[1::2], strict=True):
            shown = _shown(texts[index], following, rendered, position)
            if shown is None:
                return None
            places.append(_Place(position, position + len(shown), index))
            position += len(shown) + len(following)
        return places if position == len(rendered) else None

    def _opening(self, texts: Sequence[str], rendered: str) -> str:
        """What `add_generation_prompt` adds at the end; "" for templates without it."""
        if not self._add_generation_prompt:
            asked = self._render(texts, add_generation_prompt=True)
            return asked[len(rendered) :] if asked.startswith(rendered) else ""
        closed = self._render(texts, add_generation_prompt=False)
        return rendered[len(closed) :] if rendered.startswith(closed) else ""

    def _widened(self, place: _Place, texts: Sequence[str], rendered: str, opening: str) -> _Place:
        """`place` with the white space that the template puts before an answer but not before the model's turn.

        The model has generated that white space itself, so it is in the answer's ids already ("[/INST]" + " Hi").
        """
        before = rendered[: place.start]
        if not before[-1:].isspace() or (opening and before.endswith(opening)):
            return place
        try:
            asked = self._render(texts[: place.index], add_generation_prompt=True)
        except PromptError:
            return place
        if before.startswith(asked) and before[len(asked) :].isspace():
            return _Place(len(asked), place.end, place.index)
        return place


def _shown(text: str, following: str, rendered: str, position: int) -> str | None:
    """How `text` stands at `position`: as it is, or with outer white space stripped by the template.

    Nothing stands there of a text without a word, where the template keeps the marks around it.
    """
    stripped = (text.strip(), text.lstrip(), text.rstrip(), text.strip("\n"), text.lstrip("\n"), text.rstrip("\n"))
    for candidate in (text, *stripped):
        if (candidate or not text.strip()) and rendered.startswith(candidate + following, position):
            return candidate
    return None


def _characters_not_in(text: str) -> Iterator[str]:
    """Noncharacters, which no text should have, then private ones; those that occur in `text` are left out."""
    used = set(text)
    codes = chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE))
    return (chr(code) for code in codes if chr(code) not in used)

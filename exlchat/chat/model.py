"""What a conversation is: immutable messages in a tree, and a tip that moves. Plain values, which know no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from exlchat.chat.answer_options import PLAIN, AnswerOptions
from exlchat.chat.prompt.note import Note
from exlchat.chat.prompt.thought_meter import Thought
from exlchat.llm.events import FinishReason, GenerationStats
from exlchat.llm.sampling import SamplingSettings
from exlchat.llm.thought_splitter import ThinkingMarks
from exlchat.untrusted.text import one_line, storable

Role = Literal["system", "user", "assistant"]
MessageStatus = Literal["complete", "streaming", "partial"]

TITLE_LENGTH = 60
IMPORTED_TITLE_LENGTH = 200
UNTITLED = "New conversation"

TitleBy = Literal["user", "model", "first line"]
"""Who gave a title. A user's is never replaced, a model's only by a user's."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """How an answer came to be, enough to produce it again on the same machine.

    `seen_from` is the id of the first message from which on the model saw everything; `None`: it saw all messages.
    `summary` is what it was told of those before; "" says that summarising them gave nothing. `begun_tokens` counts the
    ids of a cut answer that it goes on from. `prompt_hash` is the SHA-256 of all ids before the first new one, as
    little-endian 32-bit words; `None` in records of before it existed.
    `healed` are ids that stood behind those before the first new token took their place. `speech` is what it was asked
    to be. `chances` are those of its new tokens as `kept_chances` packs them, where they were asked for.
    `thinking_on` is whether the format was told to have the model think; `None`: it was told nothing.
    `thinking` are the marks by which its thoughts are told from the answer; `None` where the format has none.
    `thought` says how long it thought; `None` when it did not, or before that was measured.
    `note` is the author's note that stood in its prompt, with names in the place of macros.
    """

    model: str
    template: str
    sampling: SamplingSettings
    stats: GenerationStats | None
    finish_reason: FinishReason | None
    seen_from: str | None = None
    summary: str | None = None
    thinking: ThinkingMarks | None = None
    begun_tokens: int = 0
    prompt_hash: str | None = None
    persona: str | None = None
    thinking_on: bool | None = None
    thought: Thought | None = None
    healed: tuple[int, ...] = ()
    speech: AnswerOptions = PLAIN
    chances: str | None = None
    note: Note | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message; never changed once its status is `complete` or `partial`.

    `streaming` is an answer being written (its text is the journal); `partial` is one that was cut short:
    stopped by the user, or found unfinished after a crash. `token_ids` are the generated ids of an answer,
    in order, and are empty for what a person wrote. `pinned` may change at any time: the model goes on seeing a pinned
    message when older ones are left out. `left_out` may, too: the model does not see such a message, unless it is the
    one to be answered. `summary` is what a model has made of all messages before this one, from which
    on it was to see everything; "" when it made nothing. `thinking` is what the model thought before the answer.
    `persona` of a system message is what of a persona was frozen into it, a JSON object. `edited_from` is the id of the
    message of which this is a changed copy, or which it goes on from. `deleted` is hidden, and brought back by an undo.
    `foreign` is what a file of another program says of it and we have no field for, a JSON object.
    `settings` is how the conversation is spoken to from this message on, a JSON object; `None`: as before it.
    """

    id: str
    parent_id: str | None
    role: Role
    text: str
    created_at: float
    status: MessageStatus = "complete"
    token_ids: tuple[int, ...] = ()
    record: AnswerRecord | None = None
    pinned: bool = False
    summary: str | None = None
    thinking: str | None = None
    persona: Mapping[str, Any] | None = field(default=None, hash=False)
    edited_from: str | None = None
    deleted: bool = False
    foreign: Mapping[str, Any] = field(default_factory=dict, hash=False)
    settings: Mapping[str, Any] | None = field(default=None, hash=False)
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A row of the sidebar. Times are Unix seconds; `title` is never empty; `tags` are sorted."""

    id: str
    title: str
    created_at: float
    updated_at: float
    message_count: int
    pinned: bool = False
    archived: bool = False
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the branch that ends at its tip, oldest message first.

    `title_by` says who gave the title; `None` while it has none of its own.
    """

    id: str
    title: str
    created_at: float
    updated_at: float
    tip_id: str | None
    branch: tuple[Message, ...]
    title_by: TitleBy | None = None

    @property
    def system_prompt(self) -> str | None:
        """The newest system message on the branch; a change of persona is recorded in the tree this way."""
        for message in reversed(self.branch):
            if message.role == "system":
                return message.text
        return None


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """A conversation with all its branches, as importers make it and exporters read it.

    Args:
        messages: parents before children, siblings in the order in which they came to be; ids are unique in the tree,
            and the store gives new ones where they are taken.
        tip_id: of the branch that is shown; `None` before the first message.
        draft: what stands in the composer.
        foreign: what a file of another program says of it and we have no field for, a JSON object.
    """

    title: str | None
    created_at: float
    updated_at: float
    tip_id: str | None
    messages: tuple[Message, ...]
    id: str | None = None
    tags: tuple[str, ...] = ()
    pinned: bool = False
    archived: bool = False
    draft: str = ""
    foreign: Mapping[str, Any] = field(default_factory=dict)


def newest_record(branch: Sequence[Message]) -> AnswerRecord | None:
    """How the last answer of a branch came to be, of those that a model gave: an edited one was not."""
    return next((one.record for one in reversed(branch) if one.record is not None), None)


def settings_of(branch: Sequence[Message]) -> Mapping[str, Any] | None:
    """How a conversation is spoken to at the end of a branch; `None` where nothing was said of that."""
    return next((one.settings for one in reversed(branch) if one.settings is not None), None)


def is_cut(text: str, title: str | None) -> bool:
    """Whether the title that was made of a text is less than all of it."""
    return title is not None and one_line(text, len(text) + 1) != title


def clean_title(text: str) -> str | None:
    """A title of a text: the first line that is not blank, shortened; `None` when there is none."""
    for line in storable(text).splitlines():
        title = one_line(line, TITLE_LENGTH)
        if title:
            return title
    return None

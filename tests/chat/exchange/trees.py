"""Trees for the tests: random ones, and short looks at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from exlchat.chat.answer_options import DRAFTS, AnswerOptions
from exlchat.chat.exchange.branch import active_branch
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.reading import ImportedConversations, read
from exlchat.chat.model import AnswerRecord, ConversationTree, Message
from exlchat.llm.constraint import KINDS, Constraint
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=40)
TIMES = st.floats(0, 4e9)
JSON_OBJECTS = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
RECORDS = st.builds(
    AnswerRecord,
    model=TEXT,
    template=TEXT,
    sampling=st.builds(SamplingSettings, temperature=st.floats(0, 5), top_k=st.integers(0, 99)),
    stats=st.none()
    | st.builds(
        GenerationStats,
        prompt_tokens=st.integers(0, 9999),
        cached_tokens=st.integers(0, 9999),
        new_tokens=st.integers(0, 9999),
        time_to_first_token=TIMES,
        prefill_seconds=TIMES,
        decode_seconds=TIMES,
        seed=st.integers(0, 2**63),
        decode_path=st.sampled_from(["synchronous", "run-ahead"]),
    ),
    finish_reason=st.none() | st.sampled_from(["stop_token", "cancelled"]),
    seen_from=st.none() | TEXT,
    summary=st.none() | TEXT,
    begun_tokens=st.integers(0, 99),
    prompt_hash=st.none() | TEXT,
    speech=st.builds(
        AnswerOptions,
        stop=st.lists(TEXT.filter(bool) | st.integers(0, 99), max_size=2).map(tuple),
        ban=st.lists(TEXT.filter(bool), max_size=2).map(tuple),
        begin=TEXT,
        constraint=st.none() | st.builds(Constraint, st.sampled_from(KINDS), st.just("x") | TEXT.filter(str.strip)),
        thinking_budget=st.none() | st.integers(0, 99),
        heal=st.booleans(),
        draft=st.sampled_from(DRAFTS),
    ),
    persona=st.none() | TEXT,
)


@st.composite
def trees(draw: st.DrawFn) -> ConversationTree:
    """A conversation with branches and with something in every field."""
    messages: list[Message] = []
    for number in range(draw(st.integers(0, 8))):
        before = st.none() | st.sampled_from([message.id for message in messages]) if messages else st.none()
        message = st.builds(
            Message,
            id=st.just(f"{number}\u2028"),
            parent_id=before,
            role=st.sampled_from(["system", "user", "assistant"]),
            text=TEXT,
            created_at=TIMES,
            status=st.sampled_from(["complete", "partial", "streaming"]),
            token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
            record=st.none() | RECORDS,
            pinned=st.booleans(),
            summary=st.none() | TEXT,
            thinking=st.none() | TEXT,
            persona=st.none() | JSON_OBJECTS,
            edited_from=before,
            deleted=st.booleans(),
            foreign=JSON_OBJECTS,
        )
        messages.append(draw(message))
    tip = st.none() | st.sampled_from([message.id for message in messages]) if messages else st.none()
    whole = st.builds(
        ConversationTree,
        title=st.none() | TEXT,
        created_at=TIMES,
        updated_at=TIMES,
        tip_id=tip,
        messages=st.just(tuple(messages)),
        id=st.none() | TEXT,
        tags=st.lists(TEXT, max_size=3).map(tuple),
        pinned=st.booleans(),
        archived=st.booleans(),
        draft=TEXT,
        foreign=JSON_OBJECTS,
    )
    return draw(whole)


def said(tree: ConversationTree) -> list[tuple[str, str]]:
    """Who said what on the active branch."""
    return [(message.role, message.text) for message in active_branch(tree)]


def children(tree: ConversationTree, text: str | None) -> list[str]:
    """Texts of the messages under the one with this text, or of those that begin a branch."""
    parent = None if text is None else next(message.id for message in tree.messages if message.text == text)
    return [message.text for message in tree.messages if message.parent_id == parent]


def with_text(tree: ConversationTree, text: str) -> Message:
    """The message with this text."""
    return next(message for message in tree.messages if message.text == text)


def is_whole(tree: ConversationTree) -> bool:
    """Ids once each, parents before children, a tip that is there."""
    ids: set[str] = set()
    for message in tree.messages:
        if message.id in ids or (message.parent_id is not None and message.parent_id not in ids):
            return False
        ids.add(message.id)
    return tree.tip_id in ids


def imported(folder: Path, name: str, content: Any) -> ImportedConversations:
    """What is read of a file with this content: text, bytes, or a value as JSON."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read(path)


def imported_or_refused(folder: Path, name: str, content: Any) -> ImportedConversations | str:
    """What is read, or the line that it was refused with."""
    try:
        return imported(folder, name, content)
    except ExchangeError as error:
        return str(error)


def json_lines(*values: Any) -> str:
    """A line each."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)

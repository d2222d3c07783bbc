"""SillyTavern's chats: JSON lines, the first about the chat, then a message each with its swipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exlchat.chat.exchange.chain import Chain, Draft, no_empty
from exlchat.chat.exchange.importing import Importer, Notes
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import listing, mapping, name_of, rest, seconds_of, split_thinking, text_of
from exlchat.chat.model import ConversationTree, Role
from exlchat.chat.prompt.note import NOTE, USUAL_DEPTH, Note

_KNOWN = ("name", "is_user", "send_date", "mes", "swipes", "swipe_id", "swipe_info", "extra")
_KNOWN_EXTRA = ("model", "reasoning")
_NARRATOR = "narrator"
_IN_CHAT = 1
"""Where SillyTavern's author's note stands in the chat, and not beside the character."""


def _items(parsed: Parsed) -> Sequence[Any]:
    return [parsed.values] if any(_is_header(value) or _is_message(value) for value in parsed.values[:5]) else []


def _is_header(value: object) -> bool:
    fields = mapping(value)
    return "mes" not in fields and ("chat_metadata" in fields or {"user_name", "character_name"} <= fields.keys())


def _is_message(value: object) -> bool:
    fields = mapping(value)
    return "mes" in fields and "is_user" in fields


def _convert(item: Any, notes: Notes) -> ConversationTree:
    headers = [mapping(value) for value in item if _is_header(value)]
    header: Mapping[str, Any] = headers[0] if headers else {}
    began = seconds_of(header.get("create_date")) or notes.began
    chain = Chain(began)
    hidden = wrong = others = 0
    for value in item:
        fields = mapping(value)
        drafts = _drafts(fields) if "mes" in fields else []
        if drafts:
            chosen = _chosen(fields, len(drafts))
            # The program's own rule is that the chosen swipe is what it shows; where they differ, that is shown.
            shown = text_of(_text(fields.get("mes")))
            if shown is not None and _split(drafts[chosen].role, shown)[1] != drafts[chosen].text:
                wrong += 1
                drafts.insert(chosen + 1, _draft(fields, shown, mapping(fields.get("extra")), fields))
                chosen += 1
            hidden += fields.get("is_system") is True
            chain.add_alternatives(drafts, chosen)
        elif not _is_header(value):
            others += 1
    _remark(notes, hidden, wrong, others)
    _take_note(chain, mapping(header.get("chat_metadata")), notes)
    return notes.of_chain(
        "sillytavern",
        chain,
        title=name_of(header.get("character_name")),
        created_at=began,
        fields=rest(header, "create_date"),
    )


def _take_note(chain: Chain, metadata: Mapping[str, Any], notes: Notes) -> None:
    """The author's note of the chat, on what it begins with; `chat_metadata` stays as it is beside that."""
    text = text_of(metadata.get("note_prompt"))
    if text is None or not text.strip() or metadata.get("note_interval", 1) == 0:
        return
    depth = metadata.get("note_depth", USUAL_DEPTH)
    note = Note.from_json({"text": text, "depth": depth})
    if note is None:
        notes.say("its author's note is too long, or its depth is no number of messages; it is kept and not followed")
        return
    if metadata.get("note_position", _IN_CHAT) != _IN_CHAT or metadata.get("note_interval", 1) != 1:
        notes.say(f"its author's note stands {note.depth} messages before the end of every prompt here")
    settings = {"values": {}, NOTE: note.as_json()}
    chain.messages = [replace(one, settings=settings) if one.parent_id is None else one for one in chain.messages]


def _remark(notes: Notes, hidden: int, wrong: int, others: int) -> None:
    if hidden:
        notes.say(f"{hidden} messages that SillyTavern hides from the model are ordinary messages here")
    if wrong:
        notes.say(f"{wrong} messages are none of their swipes; what is shown became one more")
    if others:
        notes.leave_out(others, f"{others} lines that are no messages were left out")


def _text(value: object) -> object:
    """Chub's files have the text a level deeper."""
    return mapping(value).get("message") if isinstance(value, dict) else value


def _drafts(fields: Mapping[str, Any]) -> list[Draft]:
    texts = [text for swipe in listing(fields.get("swipes")) if (text := text_of(_text(swipe))) is not None]
    if len(texts) < 2 or len(texts) != len(listing(fields.get("swipes"))):
        text = text_of(_text(fields.get("mes")))
        return [] if text is None else [_draft(fields, text, mapping(fields.get("extra")), fields)]
    infos = listing(fields.get("swipe_info"))
    chosen = _chosen(fields, len(texts))
    drafts = []
    for number, text in enumerate(texts):
        info = mapping(infos[number]) if number < len(infos) else {}
        if number == chosen:
            info = {**info, "extra": {**mapping(info.get("extra")), **mapping(fields.get("extra"))}}
            info.setdefault("send_date", fields.get("send_date"))
        drafts.append(_draft(fields, text, mapping(info.get("extra")), info, whole=number == chosen))
    return drafts


def _chosen(fields: Mapping[str, Any], count: int) -> int:
    """`swipe_id`, or the last one where it is none of them; a message alone has no choice."""
    number = fields.get("swipe_id")
    return number if type(number) is int and 0 <= number < count else count - 1


def _draft(
    fields: Mapping[str, Any], text: str, extra: Mapping[str, Any], about: Mapping[str, Any], *, whole: bool = True
) -> Draft:
    """One swipe; `about` has its time, and what else belongs to it alone. The `whole` message's fields go with one."""
    role: Role = "user" if fields.get("is_user") is True else "assistant"
    if extra.get("type") == _NARRATOR or mapping(fields.get("extra")).get("type") == _NARRATOR:
        role = "system"
    inside, text = _split(role, text)
    known = _KNOWN if fields.get("is_system") is True else (*_KNOWN, "is_system")
    theirs = (rest(fields, *known) if whole else {}) | rest(about, *known)
    theirs |= no_empty(extra=rest(extra, *_KNOWN_EXTRA))
    foreign = no_empty(model=name_of(extra.get("model")), name=name_of(fields.get("name")), sillytavern=theirs)
    return Draft(role, text, seconds_of(about.get("send_date")), text_of(extra.get("reasoning")) or inside, foreign)


def _split(role: Role, text: str) -> tuple[str | None, str]:
    return split_thinking(text) if role == "assistant" else (None, text)


SILLY_TAVERN = Importer("sillytavern", "SillyTavern chat", _items, _convert, lambda _: None)

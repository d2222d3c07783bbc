"""A conversation as Markdown, to be read: the active branch, with thinking folded and alternatives mentioned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt

from exlchat.chat.exchange.branch import AlternativePlace, active_branch, model_of, places
from exlchat.chat.exchange.values import shown_time
from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import said_by
from exlchat.untrusted.text import one_line, visible

UNTITLED = "Conversation"
SPEAKERS = {"system": "System", "user": "You", "assistant": "Assistant"}

_BEHIND = "behind"
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
_DETAILS = re.compile(r"<(?=/?\s*(?:details|summary)\b)", re.IGNORECASE)
_LINE_END = re.compile("\r\n?")
_SPECIAL = re.compile(r"([\\`*_\[\]<>#])")


def page(trees: Sequence[ConversationTree]) -> str:
    return "\n---\n\n".join(_conversation(tree) for tree in trees)


def _conversation(tree: ConversationTree) -> str:
    where = places(tree)
    branch = active_branch(tree)
    parts = [f"# {_SPECIAL.sub(_escaped, heading(tree))}", f"*{_SPECIAL.sub(_escaped, about(tree, branch))}*"]
    for message, name in zip(branch, said_by(branch), strict=True):
        parts.append(f"## {_SPECIAL.sub(_escaped, speaker(message, name))}")
        remark = alternative(where.get(message.id))
        if remark:
            parts.append(f"*{remark}*")
        said = answer_parts(message)
        if said.thinking:
            inside = closed(_DETAILS.sub("&lt;", _shown(said.thinking)))
            parts.append(f"<details>\n<summary>Thinking</summary>\n\n{inside}\n\n</details>")
        if said.answer:
            parts.append(closed(_shown(said.answer)))
        if message.status != "complete":
            parts.append("*(cut short)*")
    return "\n\n".join(parts) + "\n"


def _shown(text: str) -> str:
    """Without what would steer a terminal or hide from the eye: the page is for reading, `jsonl` for keeping."""
    return visible(_LINE_END.sub("\n", text))


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[1]}"


def heading(tree: ConversationTree) -> str:
    return one_line(tree.title or "") or UNTITLED


def about(tree: ConversationTree, branch: Sequence[Message]) -> str:
    models = dict.fromkeys(one_line(model) for message in branch if (model := model_of(message)))
    hidden = sum(1 for message in tree.messages if not message.deleted) - len(branch)
    told = [
        shown_time(tree.created_at),
        ", ".join(models),
        f"{len(branch)} messages" + (f" and {hidden} on other branches" if hidden > 0 else ""),
        ", ".join(f"#{one_line(tag)}" for tag in tree.tags),
    ]
    return " · ".join(part for part in told if part)


def speaker(message: Message, name: str | None) -> str:
    """Who says it: its name, the model of an answer, or the role."""
    given = message.foreign.get("name")
    if isinstance(given, str) and given.strip():
        return one_line(given, 80)
    if name is not None:
        return name
    model = model_of(message)
    if message.role == "assistant" and model:
        return f"{SPEAKERS['assistant']} ({one_line(model, 80)})"
    return SPEAKERS[message.role]


def alternative(place: AlternativePlace | None) -> str:
    """Which of several alternatives a message is; empty for the only one."""
    return f"Alternative {place.number} of {place.of}" if place is not None and place.of > 1 else ""


def closed(text: str) -> str:
    """`text` with a fence that it leaves open closed, so that what follows is no code.

    A text that runs on for another reason, as an open HTML comment, becomes code as a whole.
    """
    if not _runs_on(text):
        return text
    for ending in dict.fromkeys(match[1] for match in _FENCE.finditer(text)):
        if not _runs_on(f"{text}\n{ending}"):
            return f"{text}\n{ending}"
    longest = max((len(match[0]) for match in re.finditer("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _runs_on(text: str) -> bool:
    """Whether a heading behind the text would be part of it."""
    tokens = _blocks().parse(f"{text}\n\n# {_BEHIND}")
    return not (len(tokens) > 2 and tokens[-3].type == "heading_open" and tokens[-2].content == _BEHIND)


@cache
def _blocks() -> MarkdownIt:
    """Finds blocks and does not look into them."""
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser

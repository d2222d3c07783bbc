"""How importers grow a conversation: messages one after another, and trees of which some nodes are no messages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from exlchat.chat.model import Message, Role
from exlchat.chat.speakers import label_of


@dataclass(frozen=True, slots=True)
class Draft:
    """One message before it has a place.

    Args:
        at: Unix seconds; `None` where the file does not say.
    """

    role: Role
    text: str
    at: float | None = None
    thinking: str | None = None
    foreign: Mapping[str, Any] = field(default_factory=dict)


class Chain:
    """Grows a conversation message by message.

    A step (a tool's call or its result) is no message of ours: it is kept, as the file has it, in the answer that
    follows. Where none follows, an answer without text takes it.

    Args:
        began: Unix seconds, for messages before the first one that says its time.
    """

    def __init__(self, began: float) -> None:
        self.messages: list[Message] = []
        self.tip_id: str | None = None
        self._now = began
        self._steps: list[Any] = []

    def add(self, draft: Draft) -> None:
        self.add_alternatives([draft], 0)

    def add_alternatives(self, drafts: Sequence[Draft], chosen: int) -> None:
        steps = self._steps if drafts[0].role == "assistant" else []
        if steps:
            self._steps = []
        elif self._steps and drafts[0].role == "user":
            self.end()
        parent_id = self.tip_id
        times = [draft.at for draft in drafts if draft.at is not None]
        for number, draft in enumerate(drafts):
            at = self._now if draft.at is None else draft.at
            foreign = {**draft.foreign, **({"steps": steps} if steps and number == chosen else {})}
            self._append(parent_id, draft, at, foreign)
            if number == chosen:
                self.tip_id = self.messages[-1].id
        self._now = max(times, default=self._now)

    def step(self, step: Any) -> None:
        """A tool's call or result, a cleaned JSON value."""
        self._steps.append(step)

    def end(self) -> None:
        """Steps that no answer follows get one without text."""
        steps, self._steps = self._steps, []
        if steps:
            self._append(self.tip_id, Draft("assistant", ""), self._now, {"steps": steps})
            self.tip_id = self.messages[-1].id

    def _append(self, parent_id: str | None, draft: Draft, at: float, foreign: Mapping[str, Any]) -> None:
        message = Message(
            uuid.uuid4().hex,
            parent_id,
            draft.role,
            draft.text,
            at,
            thinking=draft.thinking,
            persona=_named(draft),
            foreign=foreign,
        )
        self.messages.append(message)


def _named(draft: Draft) -> dict[str, Any] | None:
    """Who says it by the file's own word, for its name to stand over it."""
    name = draft.foreign.get("name")
    label = label_of(name) if isinstance(name, str) and draft.role != "system" else ""
    return {"user" if draft.role == "user" else "char": label} if label else None


def no_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


class TreeNode(Protocol):
    parent: str | None

    @property
    def is_message(self) -> bool: ...


Node = TypeVar("Node", bound=TreeNode)


class Above(Generic[Node]):
    """The nearest ancestor that is a message, and the nodes between; these belong to the first that asks for them."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._found: dict[str, str | None] = {}

    def of(self, node: Node) -> tuple[str | None, list[Node]]:
        """The ancestor's id and the nodes, oldest first.

        An ancestor that is missing is named, so that the tree is mended there; a circle ends where it closes.
        """
        between: dict[str, Node] = {}
        at = node.parent
        while at is not None and at not in self._found and at not in between:
            above = self._nodes.get(at)
            if above is None or above.is_message:
                break
            between[at] = above
            at = above.parent
        kept = self._found[at] if at is not None and at in self._found else at
        self._found.update(dict.fromkeys(between, kept))
        return kept, list(reversed(between.values()))

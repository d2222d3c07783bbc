"""Trees of which some nodes are no messages: what stands between a message and the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar


class TreeNode(Protocol):
    """A node of a file's tree."""

    parent: str | None

    @property
    def is_message(self) -> bool:
        """Whether it becomes a message."""


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

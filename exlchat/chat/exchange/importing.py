"""What all importers share: what one is, where its remarks go, and how a tree is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exlchat.chat.exchange.chain import Chain
from exlchat.chat.exchange.limits import ExchangeError, Problems
from exlchat.chat.exchange.mending import known_tip, mended
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import listing, mapping
from exlchat.chat.model import ConversationTree, Message

Kind = Literal[
    "exlchat",
    "openai",
    "sharegpt",
    "chatgpt",
    "claude-ai",
    "open-webui",
    "sillytavern",
    "textgen",
    "llm",
    "exllamav3",
    "exui",
    "aichat",
]

_LOOKED_AT = 20
"""Values of a list or lines of a file by which its kind is told."""


class Notes:
    """Where one conversation's remarks go.

    Args:
        began: Unix seconds, of what the file gives no time.
        where: the conversation's name for the user.
    """

    def __init__(self, began: float, where: str, problems: Problems) -> None:
        self.began = began
        self.where = where
        self._problems = problems

    def say(self, what: str) -> None:
        self._problems.add(self.where, what)

    def leave_out(self, count: int, what: str) -> None:
        self._problems.leave_out(self.where, what, count)

    def whole(
        self,
        kind: Kind,
        messages: Sequence[Message],
        tip_id: str | None,
        *,
        title: str | None = None,
        created_at: float | None = None,
        updated_at: float | None = None,
        tags: Sequence[str] = (),
        pinned: bool = False,
        archived: bool = False,
        fields: Any = None,
    ) -> ConversationTree:
        """The tree, mended; `fields` are the file's own that we have no place for.

        Raises:
            ExchangeError: there is no message, or there are too many.
        """
        if not messages:
            raise ExchangeError("it has no messages")
        tree = mended(messages, self._problems, self.where)
        times = [message.created_at for message in tree]
        created = min(times) if created_at is None else created_at
        updated = max([created, *times]) if updated_at is None else updated_at
        return ConversationTree(
            title=title,
            created_at=created,
            updated_at=updated,
            tip_id=known_tip(tree, tip_id or tree[-1].id, self._problems, self.where),
            messages=tree,
            tags=tuple(dict.fromkeys(tags)),
            pinned=pinned,
            archived=archived,
            foreign={"source": kind, **({kind: fields} if fields else {})},
        )

    def of_chain(self, kind: Kind, chain: Chain, **about: Any) -> ConversationTree:
        chain.end()
        return self.whole(kind, chain.messages, chain.tip_id, **about)


@dataclass(frozen=True, slots=True)
class Importer:
    """One kind of file.

    Args:
        name: for users.
        items: the conversations in what was parsed; empty if it is of another kind.
        convert: one of them to a tree; raises `ExchangeError` with why not.
        title_of: what the user knows it by, if anything.
    """

    kind: Kind
    name: str
    items: Callable[[Parsed], Sequence[Any]]
    convert: Callable[[Any, Notes], ConversationTree]
    title_of: Callable[[Any], object] = lambda item: mapping(item).get("title")


def objects_that(parsed: Parsed, fits: Callable[[Any], bool]) -> Sequence[Any]:
    """The values that are conversations by themselves: the file's one, those of its list, or those of its lines."""
    for values in (parsed.values, listing(parsed.values[0]) if len(parsed.values) == 1 else []):
        if _some(values, fits):
            return values
    return []


def _some(values: Iterable[Any], fits: Callable[[Any], bool]) -> bool:
    return any(fits(value) for value, _ in zip(values, range(_LOOKED_AT), strict=False))

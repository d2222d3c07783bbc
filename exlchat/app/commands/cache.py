"""What is asked of the engine about its cache: what it holds, and what reading a conversation again would cost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.commands import action
from exlchat.app.panels.cache import cache_line, cache_rows, cost_line
from exlchat.chat.store.conversations import StoreError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View
    from exlchat.chat.prompt.cost import PromptCost
    from exlchat.llm.info import CacheReport

command = partial(action.command, topic="Memory")

_TITLE_CELLS = 60


def model_to_come(view: View) -> str | None:
    """What has to happen before the engine can be asked of itself; `None` when it can be now."""
    return "the model is loaded" if view.model.info is None and view.model.failure is None else None


def questions_wait_for(view: View) -> str | None:
    """What has to happen before the engine can be asked about the open conversation; `None` when it can be now."""
    return model_to_come(view) or ("the answer has ended" if view.session.answering is not None else None)


@command(
    "cache",
    "Cache",
    "Show what the model's cache holds, whose it is, and how much it saves.",
    "/cache",
    after="stats",
    needs="cache",
)
def cache(view: View, _: str) -> None:
    wait = model_to_come(view)
    if wait is not None:
        view.tell(f"The cache is shown when {wait}")
    view.session.questions.cache(partial(cache_told, view, late=wait is not None))


def cache_told(view: View, report: CacheReport, *, late: bool) -> None:
    try:
        titles = {one.id: one.title for one in view.session.store.list_conversations()}
    except StoreError:
        titles = {}
    view.show_rows("Cache", list(cache_rows(report, titles)), late=cache_line(report) if late else "")


@command(
    "cost",
    "Cost of reading again",
    "Say how many tokens would be read anew for the next answer; with TEXT, if TEXT were the system prompt.",
    "/cost",
    "[TEXT]",
    when=lambda now: now.has_messages,
    needs="cache",
)
def cost(view: View, system: str) -> None:
    if (wait := questions_wait_for(view)) is not None:
        view.tell(f"The cost is told when {wait}")
    ask_cost(view, "With that system prompt" if system else "", system or None)


def ask_cost(view: View, how: str, system: str | None = None) -> None:
    """Ask what the open conversation costs. The answer names it, if another one is open by then."""
    session = view.session
    if "cache" in session.lacks:
        # All would be told to be read anew, which is not known.
        return
    asked = session.conversation_id
    title = one_line(session.conversation.title, _TITLE_CELLS) if session.conversation else "the new conversation"

    def show(cost: PromptCost) -> None:
        what = "this conversation" if session.conversation_id == asked else f"“{title}”" if asked else title
        line = cost_line(cost, f"{how} {what}".strip())
        view.tell(line[0].upper() + line[1:])

    session.ask_cost(show, system)

"""Everything a person can do, in one registry: keys, slash commands and palette entries are doors to the same action.

The help screen is generated from it, and the guide's answers are checked against it. No terminal library here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Place = Literal["everywhere", "composer", "sidebar"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What the availability of an action depends on."""

    answering: bool = False
    has_messages: bool = False
    has_answer: bool = False
    can_retry: bool = False
    answer_was_cut: bool = False
    can_undo_delete: bool = False


def _always(_: Situation) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    Args:
        id: stable name, lower case with hyphens; the app's `Commands`, composer and sidebar look it up.
        title: a few words, as in the palette.
        help: one sentence, as on the help screen.
        keys: keys that do it, as written for people ("ctrl+n"); the first is the one to show.
        slash: the command, with its slash.
        argument: what may follow the command, such as "TITLE"; brackets mean that it may be left out.
        place: where the keys work.
        available: whether it can be done now.
        in_palette: whether the command palette lists it (what needs an argument to be useful is not listed).
    """

    id: str
    title: str
    help: str
    keys: tuple[str, ...] = ()
    slash: str | None = None
    argument: str = ""
    place: Place = "everywhere"
    available: Callable[[Situation], bool] = _always
    in_palette: bool = True

    @property
    def usage(self) -> str:
        """The slash command with its argument: "/rename TITLE"; empty without one."""
        return f"{self.slash} {self.argument}".strip() if self.slash else ""

    @property
    def argument_required(self) -> bool:
        """Whether the slash command is useless without its argument."""
        return bool(self.argument) and not self.argument.startswith("[")


ACTIONS: tuple[Action, ...] = (
    Action("send", "Send", "Send the message.", ("enter",), place="composer", in_palette=False),
    Action(
        "new-line",
        "New line",
        "Start a new line in the message; a backslash at the end of the line and then Enter does the same.",
        ("shift+enter", "alt+enter", "ctrl+j"),
        place="composer",
        in_palette=False,
    ),
    Action(
        "earlier-prompt",
        "Earlier prompts",
        "Bring back what you asked before in this conversation, from the first or last line of the message.",
        ("up", "down"),
        place="composer",
        in_palette=False,
    ),
    Action(
        "stop",
        "Stop the answer",
        "Stop the answer and keep its text.",
        ("escape",),
        available=lambda now: now.answering,
    ),
    Action("new", "New conversation", "Start a new conversation.", ("ctrl+n",), "/new"),
    Action(
        "sidebar",
        "Conversations",
        "Show or hide the sidebar with the conversations.",
        ("ctrl+b",),
        "/sidebar",
    ),
    Action(
        "open",
        "Open a conversation",
        "Open the Nth conversation of the list, the newest being 1; without N, go to the list.",
        (),
        "/open",
        "[N]",
    ),
    Action(
        "retry",
        "Retry the last answer",
        "Have the last message answered again; the old answer is kept.",
        ("ctrl+r",),
        "/retry",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "continue",
        "Continue a cut answer",
        "Go on with an answer that was cut.",
        (),
        "/continue",
        available=lambda now: now.answer_was_cut and not now.answering,
    ),
    Action(
        "pin",
        "Pin a message",
        "Have the model go on seeing the last message, or the Nth from the end, when the oldest are left out.",
        (),
        "/pin",
        "[N]",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "unpin",
        "Unpin a message",
        "Take the pin from the last message, or from the Nth from the end.",
        (),
        "/unpin",
        "[N]",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "summary",
        "Summary of the earlier conversation",
        "Show the summary that the model sees in the place of the oldest messages.",
        (),
        "/summary",
        available=lambda now: now.has_answer,
    ),
    Action(
        "copy",
        "Copy the last answer",
        "Copy the last answer to the clipboard.",
        ("ctrl+y",),
        "/copy",
        available=lambda now: now.has_answer,
    ),
    Action(
        "rename",
        "Rename this conversation",
        "Give this conversation a title.",
        (),
        "/rename",
        "TITLE",
        available=lambda now: now.has_messages,
    ),
    Action(
        "delete",
        "Delete this conversation",
        "Delete this conversation; /undo brings it back.",
        (),
        "/delete",
        available=lambda now: now.has_messages,
    ),
    Action(
        "undo",
        "Undo the delete",
        "Bring back the conversation that was deleted last.",
        (),
        "/undo",
        available=lambda now: now.can_undo_delete,
    ),
    Action(
        "system",
        "System prompt",
        "Say who is speaking: set the system prompt of this conversation; without TEXT, show it.",
        (),
        "/system",
        "[TEXT]",
    ),
    Action(
        "persona",
        "Persona",
        "Have a persona speak from here on; without NAME, say who speaks and who there is.",
        (),
        "/persona",
        "[NAME]",
    ),
    Action(
        "preset",
        "Sampling preset",
        "Draw answers by a sampling preset from here on; without NAME, list them and show what holds.",
        (),
        "/preset",
        "[NAME]",
    ),
    Action(
        "template",
        "Prompt template",
        "Choose the prompt template: model, chatml, plain, or a file in the templates folder.",
        (),
        "/template",
        "[NAME]",
    ),
    Action(
        "theme",
        "Theme",
        "Choose the colours: exlchat-dark, exlchat-light, or a theme of your own.",
        (),
        "/theme",
        "[NAME]",
    ),
    Action(
        "set",
        "Answer settings",
        "Change temperature, top_k, top_p, min_p, seed, max_tokens or context_policy until you quit; alone, show all.",
        (),
        "/set",
        "[NAME VALUE]",
    ),
    Action(
        "model",
        "About the model",
        "Show what model is loaded and how; with the NAME or folder of another, load that. /model set NAME VALUE "
        "remembers context, kv_cache, template or system for this model.",
        (),
        "/model",
        "[NAME]",
    ),
    Action("models", "Models", "Show the models there are, whether they fit, and load one.", (), "/models"),
    Action(
        "stats",
        "Statistics",
        "Show the figures of the last answer.",
        (),
        "/stats",
        available=lambda now: now.has_answer,
    ),
    Action("cache", "Cache", "Show what the model's cache holds, whose it is, and how much it saves.", (), "/cache"),
    Action(
        "cost",
        "Cost of reading again",
        "Say how many tokens would be read anew for the next answer; with TEXT, if TEXT were the system prompt.",
        (),
        "/cost",
        "[TEXT]",
        available=lambda now: now.has_messages,
    ),
    Action(
        "palette",
        "Command palette",
        "Find a command, a theme or a conversation by name.",
        ("ctrl+p",),
        in_palette=False,
    ),
    Action("help", "Help", "Show keys and commands.", ("f1",), "/help"),
    Action(
        "scroll-page",
        "Scroll",
        "Scroll the conversation by a page.",
        ("pageup", "pagedown"),
        in_palette=False,
    ),
    Action(
        "scroll-ends",
        "First and last line",
        "Go to the first or the last line of the conversation.",
        ("ctrl+home", "ctrl+end"),
        in_palette=False,
    ),
    Action(
        "copy-or-stop",
        "Copy, stop or quit",
        "Copy the selected text; without a selection stop the answer; twice in a row quits.",
        ("ctrl+c",),
        in_palette=False,
    ),
    Action("quit", "Quit", "Quit; an answer being written is kept as far as it has come.", ("ctrl+q",), "/quit"),
    Action("open-selected", "Open", "Open the conversation.", ("enter",), place="sidebar", in_palette=False),
    Action("rename-selected", "Rename", "Rename the conversation.", ("r",), place="sidebar", in_palette=False),
    Action("delete-selected", "Delete", "Delete the conversation.", ("d", "delete"), place="sidebar", in_palette=False),
    Action(
        "undo-delete",
        "Undo",
        "Bring back the conversation that was deleted last.",
        ("u",),
        place="sidebar",
        in_palette=False,
    ),
    Action("leave-sidebar", "Back", "Go back to the message.", ("escape",), place="sidebar", in_palette=False),
)

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}
BY_SLASH: dict[str, Action] = {action.slash: action for action in ACTIONS if action.slash}


def completions(text: str) -> list[Action]:
    """Actions whose slash command begins with `text`, for as long as only a command has been typed."""
    if not text.startswith("/") or text.startswith("//") or any(mark.isspace() for mark in text):
        return []
    return [action for slash, action in sorted(BY_SLASH.items()) if slash.startswith(text.lower())]

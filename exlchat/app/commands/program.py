"""What the program shows of itself, its colours and settings, and the keys that work everywhere."""

from __future__ import annotations

import difflib
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.panels.figures import describe_figures

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="The program")

QUIT_WITHIN_SECONDS = 2.0
"""How soon a second ctrl+c quits."""


@command(
    "theme",
    "Theme",
    "Choose the colours, of those that exlchat themes shows or of your own.",
    "/theme",
    "[NAME]",
    after="template",
    aliases=("/themes",),
)
def theme(view: View, name: str) -> None:
    names = list(view.theme_names())
    if name in names:
        view.choose_theme(name)
    elif name:
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
        raise NotPossibleError(f"there is no theme {name}; {hint}")
    else:
        view.note(f"Theme: {view.theme_in_use}. There are {', '.join(names)}; /theme NAME chooses one")


@command(
    "stats",
    "Statistics",
    "Show the figures of the last answer, how fast answers come, and what of memory and cache is used.",
    "/stats",
    keys=("f9",),
    after="models",
    aliases=("/usage", "/tps"),
)
def stats(view: View, _: str) -> None:
    view.note(describe_figures(view.session.last_answer))


command(
    "prompt",
    "Prompt inspector",
    "Show the exact prompt: every token, coloured by message, what the cache holds shaded.",
    "/prompt",
    keys=("f4",),
    when=lambda now: now.has_messages,
    in_lines="Write the exact prompt: the tokens of each message, what the cache holds, and the text.",
    after="cost",
)
command(
    "palette",
    "Command palette",
    "Find a command, a theme or a conversation by name.",
    keys=("ctrl+p",),
    in_palette=False,
)


@command(
    "settings",
    "Settings",
    "See all settings and change them; with KEY VALUE, change that one.",
    "/settings",
    "[KEY VALUE]",
    keys=("f2",),
    in_lines="List all settings; KEY tells of one, KEY VALUE changes it, KEY default takes it out of the file.",
    aliases=("/config", "/preferences"),
)
def settings(view: View, argument: str) -> None:
    view.change_settings(argument)


@command(
    "log",
    "Log",
    "Show what the program has said in this run, and where its file of errors is.",
    "/log",
    aliases=("/debug",),
)
def log(view: View, _: str) -> None:
    view.show_rows("Log", list(view.said.rows()))


command(
    "help",
    "Help",
    "Show keys and commands.",
    "/help",
    keys=("f1",),
    aliases=("/?", "/commands"),
)
command("scroll-page", "Scroll", "Scroll the conversation by a page.", keys=("pageup", "pagedown"), in_palette=False)
command(
    "scroll-ends",
    "First and last line",
    "Go to the first or the last line of the conversation.",
    keys=("ctrl+home", "ctrl+end"),
    in_palette=False,
)
command(
    "copy-or-stop",
    "Copy, stop or quit",
    "Copy the selected text; without a selection stop the answer; twice in a row quits.",
    keys=("ctrl+c",),
    in_palette=False,
    in_lines="Stop the answer, or leave a message that is being changed as it is; twice in a row quits.",
)


@command(
    "quit",
    "Quit",
    "Quit; an answer being written is kept as far as it has come.",
    "/quit",
    keys=("ctrl+q",),
    aliases=("/exit", "/bye", "/q"),
)
def leave(view: View, _: str) -> None:
    view.leave()

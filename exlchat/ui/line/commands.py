"""What the actions of the registry do in the line mode; where that is not what the registry says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from exlchat.app.chat import tree_actions
from exlchat.app.chat.numbered import about
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.actions import ACTIONS, BY_ID, Commands
from exlchat.app.commands.answers import retry
from exlchat.app.commands.code import code_meant, free_name, saved_line
from exlchat.app.commands.program import QUIT_WITHIN_SECONDS
from exlchat.app.library.listing import fit_text, summary
from exlchat.ui.line.looking import Looking
from exlchat.ui.line.view import LISTED
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from exlchat.app.library.listing import Entry
    from exlchat.ui.line.answers import Comparing
    from exlchat.ui.line.view import LineView

_TYPED_CELLS = 200
_ONE_AT_A_TIME = "one conversation is open at a time here: /new begins another, /open N goes to the Nth of the list"
PLAIN_KEYS: Final = (
    ("enter", "Send the message, unless a ``` fence is open or the line ends with a backslash."),
    ("ctrl+c", "Stop the answer and keep its text; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line."),
)


class LineCommands(Commands):
    def __init__(self, view: LineView, comparing: Comparing) -> None:
        self._lines = view
        self._last_ctrl_c = 0.0
        self.looking = looking = Looking(view, view.scrollback, view.console)
        super().__init__(
            view,
            {
                "stop": lambda _: self._stop(),
                "retry": self._retry,
                "models": lambda _: self._models(),
                "branch": self._branch,
                "alternative": self._alternative,
                "edit": view.editing.begin,
                "history": self._typed_before,
                "compare": comparing.begin,
                "messages": lambda _: looking.messages(),
                "find": looking.find,
                "tree": looking.tree,
                "search": looking.search,
                "source": looking.source,
                "archived": lambda _: looking.archived(),
                "prompt": lambda _: looking.prompt(),
                "save-code": self._save_code,
                "help": lambda _: view.note("\n".join(self._help())),
                "copy-or-stop": lambda _: self._stop_or_quit(),
                "tab": lambda _: self._lines.tell(_ONE_AT_A_TIME, warning=True),
                "close-tab": lambda _: self._lines.tell(_ONE_AT_A_TIME, warning=True),
            },
        )

    def run(self, action_id: str, argument: str = "") -> bool:
        """Do an action; one that cannot be done, or not without a screen, says why. Whether it was done."""
        if self.known(action_id):
            return super().run(action_id, argument)
        action = BY_ID[action_id]
        name = action.slash or action.title
        self._lines.tell(f"{name} needs the screen of the app, which exlchat without --line has", warning=True)
        return False

    def _help(self) -> Iterator[str]:
        if not self._lines.console.repaints:
            return help_lines(PLAIN_KEYS, self._lines.session.lacks)
        # No key is bound where lines are only appended.
        from exlchat.ui.line.own_keys import keys_in_words

        return help_lines(keys_in_words(self._lines.keys, self.known), self._lines.session.lacks)

    def _retry(self, back: str) -> None:
        if back:
            session = self._lines.session
            session.require_quiet()
            message = tree_actions.said_back(session, back)
            self._lines.note(f"Answered again: {about(message, session.places)}")
        retry(self._lines, back)

    def _save_code(self, argument: str) -> None:
        blocks, name = code_meant(self._lines.session, argument)
        self._lines.tell(saved_line(blocks, name or free_name(blocks)))

    def _stop(self) -> None:
        if not self._lines.editing.leave():
            self._lines.session.stop()

    def _stop_or_quit(self) -> None:
        if self._lines.editing.leave():
            return
        now = time.monotonic()
        if now - self._last_ctrl_c < QUIT_WITHIN_SECONDS:
            self._lines.leave()
            return
        self._last_ctrl_c = now
        stopped = self._lines.session.stop()
        if self._lines.console.repaints or not stopped:
            # A written line would stand before the end of the answer, which says by itself that it was stopped.
            said = "Stopped; ctrl+c again quits" if stopped else "ctrl+c again quits"
            self._lines.console.hint(said, QUIT_WITHIN_SECONDS)

    def _typed_before(self, part: str) -> None:
        texts = [one for one in self._lines.services.typed.texts() if part.casefold() in one.casefold()]
        if not texts:
            raise NotPossibleError("nothing that was typed before has that in it" if part else "nothing was typed yet")
        self._lines.note("\n".join(one_line(one, _TYPED_CELLS) for one in texts[-LISTED:]))

    def _branch(self, back: str) -> None:
        view = self._lines
        message = tree_actions.said_back(view.session, back)
        view.unsent.keep()
        tree_actions.branch_off(view.session, message.id)
        view.show_branch()
        view.tell("This is a new conversation with what came before; /open lists the other one")

    def _alternative(self, number: str) -> None:
        view = self._lines
        view.session.require_quiet()
        at, last = tree_actions.numbered_alternative(view.session, number)
        if at:
            tree_actions.alternative(view.session, last.id, at)
            view.show_branch()
            view.tell(f"Alternative {number} is shown")

    def _models(self) -> None:
        self._lines.tell("Looking through the folders…")
        self._lines.in_background(self._lines.shelf.listed, self._models_listed)

    def _models_listed(self, entries: Sequence[Entry]) -> None:
        lines = ["/model NAME loads one of these:"]
        lines += [_model_line(entry) for entry in entries]
        self._lines.note("\n".join(lines) if entries else "There are no models; exlchat pull fetches one")


def help_lines(keys: Iterable[tuple[str, str]], lacks: Mapping[str, str]) -> Iterator[str]:
    """Keys of the line mode with what they do, and all commands of the registry, also those that the model lacks."""
    yield "Keys"
    for names, what in keys:
        yield f"  {names}: {what}"
    yield "Commands"
    for action in ACTIONS:
        if action.slash:
            reason = action.lacking(lacks)
            told = f"Not now: {reason}." if reason else f"{action.in_lines or action.help}{action.also}"
            yield f"  {action.usage}: {told}"
    yield "  //text: Send text that begins with a slash."


def _model_line(entry: Entry) -> str:
    if entry.card.problem is not None:
        return f"  {entry.name}: cannot be loaded: {entry.problem}"
    return f"  {entry.name}: {summary(entry)}; {fit_text(entry)}"

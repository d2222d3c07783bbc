"""The chat in lines: what is typed goes to the session, what the engine's jobs report comes back as lines."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.chat.finding import newest
from exlchat.app.chat.leaving import kept_or_why
from exlchat.app.chat.message_words import welcome_lines
from exlchat.app.composer.file_mentions import MentionError, with_files
from exlchat.app.composer.typed_input import BadCommand, Command, parse_input
from exlchat.app.presenter import Presenter
from exlchat.app.runtime.jobs import JobEvent
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.turn_events import AnswerClosed, OneAnswer
from exlchat.ui.line.answers import Answers
from exlchat.ui.line.commands import LineCommands
from exlchat.ui.line.settings_lines import LineSettings
from exlchat.ui.line.view import LineView
from exlchat.untrusted.text import storable

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.services import Services
    from exlchat.ui.line.console import Console

_EDITOR_SECONDS = 0.05
_KEYS = "ctrl+c stops an answer, ctrl+d quits, /help shows keys and commands."


class LineChat(LineView):
    """Shows one session on one console. Everything but `_post` runs on the thread of the event loop."""

    def __init__(self, services: Services, console: Callable[[LineChat], Console]) -> None:
        super().__init__(services, console, self._post)
        self.change_settings = LineSettings(self, self.use_keys).run
        self.answers = Answers(self)
        self.presenter = Presenter(self, self.answers)
        self.commands = LineCommands(self, self.answers.comparing)
        self._warned_of_loss = False
        self._following: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        for notice in self.services.notices:
            self.tell(notice, warning=True)
        self._following.append(self.keep_running(self.elsewhere.follow()))
        if self.console.repaints:
            # Where there are no colours, files of them need not be followed.
            self._following.append(self.keep_running(self.live_themes.follow()))
        try:
            last = newest(self.session.store) if self.services.continue_last else None
        except StoreError as error:
            last = None
            self.tell(str(error), warning=True)
        if last is None or not self.open_conversation(last):
            self._welcome()
        if self.services.first_message is not None:
            self._begin_with(self.services.first_message)

    def _welcome(self) -> None:
        stop = self.keys.keys("stop")[0]
        keys = f"{'Esc' if stop == 'escape' else stop} or {_KEYS}" if self.console.repaints else _KEYS
        for line in welcome_lines(self.model.name, is_guide=self.model.is_guide, keys=keys):
            self.note(line)
        self.start_new()

    def _begin_with(self, text: str) -> None:
        if (line := self.services.typed.add(text)) is not None:
            self.tell(line, warning=True)
        if back := self.submit(text):
            self.console.set_text(back)

    def show(self, *, titled: bool) -> None:
        """The open conversation's end; answers that are compared elsewhere are written no more."""
        self.answers.comparing.forget()
        super().show(titled=titled)

    # Typing

    def submit(self, text: str) -> str:
        """Take what was typed; what belongs back where it was typed, because it could not be sent or done."""
        text = storable(text)
        if self.editing.active:
            return self.editing.submit(text)
        match parse_input(text):
            case BadCommand(line=line):
                self.tell(line, warning=True)
                return text
            case Command(action=action, argument=argument):
                done = self.commands.run(action.id, argument)
                return "" if done or not argument else text
            case prompt if prompt.text:
                return "" if self._send_with_files(prompt.text) else text
        return ""

    def _send_with_files(self, text: str) -> bool:
        try:
            return self.send(with_files(text, Path.cwd()))
        except MentionError as error:
            self.tell(f"Not sent: {error}", warning=True)
            return False

    # Keys, and reports

    def use_keys(self, keys: Keymap) -> None:
        self.keys = keys
        if self.console.repaints:
            from exlchat.ui.line.own_keys import own_problems

            for line in own_problems(keys, self.commands.known):
                self.tell(line, warning=True)

    def _post(self, report: Report) -> None:
        """Called on the threads of jobs."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._take, report)

    def _take(self, report: Report) -> None:
        if not self.leaving:
            self.presenter.take(report)
            return
        match report:
            case (
                JobEvent(event=AnswerClosed(error=str() as error))
                | JobEvent(event=OneAnswer(event=AnswerClosed(error=str() as error)))
            ):
                self.not_kept = error

    # Leaving

    def leave(self) -> None:
        """Quit; while something is not on disk only the second time."""
        problem = kept_or_why(self.session, self.unsent)
        if problem is not None and not self._warned_of_loss:
            self._warned_of_loss = True
            self.tell(problem, warning=True)
            return
        self._go(problem)

    def end_soon(self, _: int) -> None:
        """Quit as soon as the loop is free; for signal handlers."""
        with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
            self.loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Quit because a signal says so: what cannot be kept is told behind the end."""
        if self.leaving:
            return
        if self.console.in_editor:
            # It is ended as well, and what was saved in it is to be kept.
            self.later(_EDITOR_SECONDS, self.end)
            return
        self.console.take_unfinished()
        self._go(kept_or_why(self.session, self.unsent))

    def _go(self, not_kept: str | None) -> None:
        self.not_kept = not_kept
        self.leaving = True
        for task in self._following:
            task.cancel()
        self.leave_answer()
        self.console.leave()

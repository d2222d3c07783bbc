"""The chat in lines: what is typed goes to the session, what the engine thread reports comes back as lines."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat.app.chat.leaving import kept_or_why
from exlchat.app.chat.message_words import welcome_lines
from exlchat.app.chat.session import ChatSession
from exlchat.app.chat.unsent import Unsent
from exlchat.app.commands.model import ModelCommands
from exlchat.app.composer.file_mentions import MentionError, with_files
from exlchat.app.composer.typed_input import BadCommand, Command, parse_input
from exlchat.app.live_themes import LiveThemes
from exlchat.app.panels.figures import StatusFacts
from exlchat.app.runtime.engine_thread import EngineThread
from exlchat.app.runtime.errors import told_error
from exlchat.app.runtime.model_state import ModelState
from exlchat.chat.store.conversations import StoreError
from exlchat.config.files import SettingsError, save_setting
from exlchat.ui.line.answers import Answers
from exlchat.ui.line.commands import LineCommands
from exlchat.ui.line.comparing import Comparing
from exlchat.ui.line.editing import Editing
from exlchat.ui.line.settings_lines import LineSettings
from exlchat.ui.line.transcript import Transcript
from exlchat.untrusted.text import one_line, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.runtime.jobs import Load, Report
    from exlchat.app.services import Services
    from exlchat.config.themes import ThemeFile
    from exlchat.ui.line.paper import Fragments, Paper

_EDITOR_SECONDS = 0.05
_KEYS = "ctrl+c stops an answer, ctrl+d quits, /help shows keys and commands."


class LineChat:
    """Shows one session on one paper. Everything but `_post` runs on the thread of the event loop."""

    def __init__(self, services: Services, paper: Callable[[LineChat], Paper]) -> None:
        """`paper` makes what this chat is written on."""
        self._loop = asyncio.get_running_loop()
        self.services = services
        self.live_themes = LiveThemes(self, services.themes)
        self.theme = services.theme
        self.keys = services.keys
        self.facts = StatusFacts(model=services.model_name, activity="loading")
        self.engine_thread = EngineThread(services.load_engine, self._post, name=services.model_name)
        self.session = ChatSession(
            services.store,
            self.engine_thread,
            template=services.template,
            system=services.system,
            generation=services.generation,
            persona=services.persona,
            titles=services.titles,
        )
        self.model = ModelState(services.model_name, is_guide=services.is_guide)
        self.paper = paper(self)
        self.editing = Editing(self)
        self.unsent = Unsent(
            self.session,
            services.drafts,
            typed=self.editing.typed,
            later=lambda seconds, keep: self._loop.call_later(seconds, keep).cancel,
            warn=lambda line: self.tell(line, warning=True),
        )
        self.model_commands = ModelCommands(self)
        self.settings_commands = LineSettings(self)
        self.comparing = Comparing(self)
        self.commands = LineCommands(self)
        self.transcript = Transcript(self)
        self.answers = Answers(self)
        self._warned_of_loss = False
        self.leaving = False
        self.not_kept: str | None = None
        """Why something that was written until the end is not on disk."""
        self._background: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Say what the start has to say, and show the conversation that goes on."""
        for notice in self.services.notices:
            self.tell(notice, warning=True)
        if self.paper.repaints:
            # Where there are no colours, files of them need not be followed.
            self._following = self.keep_running(self.live_themes.follow())
        try:
            newest = next(iter(self.session.store.list_conversations()), None) if self.services.continue_last else None
        except StoreError as error:
            newest = None
            self.tell(str(error), warning=True)
        if newest is not None and self.open_conversation(newest.id):
            return
        stop = self.keys.keys("stop")[0]
        keys = f"{'Esc' if stop == 'escape' else stop} or {_KEYS}" if self.paper.repaints else _KEYS
        for line in welcome_lines(self.model.name, is_guide=self.model.is_guide, keys=keys):
            self.note(line)
        self._start_new()

    # What is shown

    def tell(self, line: str, *, warning: bool = False) -> None:
        """A line of the program."""
        self.services.log.say(line, warning=warning)
        self.put(self.paper.ink.remark("warning" if warning else "note", line))

    def note(self, text: str) -> None:
        """A remark of the program; not part of the conversation, so never on disk."""
        self.put(self.paper.ink.remark("note", text))

    def put(self, lines: list[Fragments]) -> None:
        """Lines behind what an answer has brought so far."""
        self.answers.write_finished()
        self.paper.put(lines)

    def show_messages(self) -> None:
        """Messages of the open conversation that were not shown yet."""
        self.transcript.show_new()
        self.refresh_around()

    def show_conversation(self) -> None:
        """The open conversation's end, with what was typed in it and not sent."""
        self._show(titled=True)

    def _show(self, *, titled: bool) -> None:
        if self.editing.active:
            self.editing.forget()
            self.paper.end_edit("")
        self.comparing.forget()
        self.transcript.show_conversation(titled=titled)
        self.paper.set_text(self.unsent.text())
        self.answers.show_figures()
        self.refresh_around()

    def refresh_around(self) -> None:
        """Paint what may have changed."""
        self.paper.refresh()

    # Conversations

    def open_conversation(self, conversation_id: str) -> bool:
        """Leave the open conversation for another; whether that could be read."""
        self.unsent.keep()
        self.answers.leave()
        try:
            self.session.open(conversation_id)
        except StoreError as error:
            self.tell(str(error), warning=True)
            return False
        self.show_conversation()
        return True

    def new_conversation(self) -> None:
        """Leave the open conversation for a new one."""
        self.unsent.keep()
        self.answers.leave()
        self.note("A new conversation begins.")
        self._start_new()

    def _start_new(self) -> None:
        try:
            self.session.start_new()
        except StoreError as error:
            self.tell(str(error), warning=True)
        self._show(titled=False)

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

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> bool:
        """Send a prompt, or let it wait for the present answer; whether it could be written."""
        old_draft_of = self.session.draft_id
        try:
            message = self.session.send(text, generation=generation)
        except StoreError as error:
            self.tell(f"Not sent: {error}", warning=True)
            return False
        if old_draft_of is None:
            self.unsent.forget_new()
        self.unsent.keep()
        if message is None:
            self.transcript.tell_waiting()
        else:
            self.transcript.show_sent(message)
        self.refresh_around()
        return True

    # Models, themes, keys, and other threads

    def change_model(self, load: Load) -> None:
        """Another model."""
        self.engine_thread.load(load)

    def reload_themes(self) -> Mapping[str, ThemeFile]:
        """Read the user's themes anew; a broken one is named, and the last good reading of it stays."""
        return self.live_themes.read()

    @property
    def themes(self) -> Mapping[str, ThemeFile]:
        """All themes by name, as last read without fault."""
        return self.live_themes.themes

    @property
    def theme_in_use(self) -> str:
        """Name of the theme that new lines are written in."""
        return self.theme

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Files have changed: new lines come in the new colours, if the theme in use is among them."""
        if any(one.name == self.theme for one in themes):
            self.paper.set_theme()
            self.refresh_around()

    def tell_of_theme(self, line: str, *, warning: bool) -> Callable[[], None]:
        """A line that stays: what is given takes nothing away."""
        self.tell(line, warning=warning)
        return lambda: None

    def use_keys(self, keys: Keymap) -> None:
        """Have these keys do what they are for, from the next one pressed on."""
        self.keys = keys
        if self.paper.repaints:
            from exlchat.ui.line.own_keys import own_problems

            for line in own_problems(keys, self.commands.known):
                self.tell(line, warning=True)

    def show_theme(self, name: str) -> None:
        """Use a theme that is there."""
        self.theme = name
        self.paper.set_theme()

    def choose_theme(self, name: str) -> None:
        """Use a theme now and from now on."""
        self.show_theme(name)
        self.tell(f"Theme: {name}")
        if not self.services.kept:
            return
        try:
            save_setting("theme", name)
        except SettingsError as error:
            self.tell(f"The theme holds for this session only: {error}", warning=True)

    def in_background(self, work: Callable[[], Any], tell: Callable[[Any], None]) -> None:
        """Do something that takes a while on a thread of its own; `tell` takes what it gave."""

        async def run() -> None:
            try:
                given = await asyncio.to_thread(work)
            except Exception as error:
                self.tell(told_error(error), warning=True)
            else:
                tell(given)

        self.keep_running(run())

    def keep_running(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside all else; what is given ends it."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Call something after a while."""
        self._loop.call_later(seconds, what)

    def _post(self, report: Report) -> None:
        """Called on the engine thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.answers.take, report)

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
            self._loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Quit because a signal says so: what cannot be kept is told behind the end."""
        if self.leaving:
            return
        if self.paper.in_editor:
            # It is ended as well, and what was saved in it is to be kept.
            self.later(_EDITOR_SECONDS, self.end)
            return
        self.paper.take_unfinished()
        self._go(kept_or_why(self.session, self.unsent))

    def _go(self, not_kept: str | None) -> None:
        self.not_kept = not_kept
        self.leaving = True
        if self._following is not None:
            self._following.cancel()
        self.answers.leave()
        self.paper.leave()

    @property
    def speaker(self) -> str:
        """Who answers, by name."""
        persona = self.session.persona
        return one_line(persona.name if persona is not None else self.model.name, 40) or "The model"

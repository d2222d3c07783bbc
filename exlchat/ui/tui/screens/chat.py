"""The one screen of the app: what is pressed, typed and reported goes from here to what carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from exlchat.app.chat.finding import newest
from exlchat.app.commands.action import attempt
from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.commands.conversations import undo_in_list
from exlchat.app.composer.file_mentions import MentionError, with_files
from exlchat.app.composer.typed_input import BadCommand, Command, parse_input
from exlchat.app.panels.figures import StatusFacts
from exlchat.app.presenter import Presenter
from exlchat.app.runtime.jobs import Answered, JobEnded, JobEvent, Report
from exlchat.chat.store.conversations import StoreError
from exlchat.ui.render.themes import pygments_style
from exlchat.ui.tui.answer_display import AnswerDisplay
from exlchat.ui.tui.chat_view import NARROW_CELLS, ChatView
from exlchat.ui.tui.commands import ScreenCommands
from exlchat.ui.tui.finding import ConversationFinder
from exlchat.ui.tui.message_commands import MessageCommands
from exlchat.ui.tui.palette import ChatProvider, PaletteEntry
from exlchat.ui.tui.settings_commands import ScreenSettings
from exlchat.ui.tui.sidebar_commands import SidebarCommands
from exlchat.ui.tui.typed_tokens import TypedTokens
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.find_bar import FindBar
from exlchat.ui.tui.widgets.sidebar import Sidebar
from exlchat.ui.tui.widgets.tab_row import TabRow
from exlchat.ui.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.composer.arguments import Arguments
    from exlchat.app.runtime.engine_jobs import EngineJobs
    from exlchat.app.services import Services


@dataclass
class EngineReport(Message, bubble=False):
    report: Report


def _bindings() -> list[BindingType]:
    everywhere = [action for action in ACTIONS if action.place == "everywhere" and action.keys]
    return [
        Binding(",".join(action.keys), f"act('{action.id}')", action.title, show=False, id=action.id)
        for action in everywhere
        if not action.id.startswith("scroll-")
    ]


class ChatScreen(ChatView):
    COMMANDS: ClassVar = {ChatProvider}
    BINDINGS: ClassVar[list[BindingType]] = [
        *_bindings(),
        Binding("pageup", "scroll_page(-1)", show=False, id="scroll-page-up"),
        Binding("pagedown", "scroll_page(1)", show=False, id="scroll-page-down"),
        Binding("ctrl+home", "scroll_to(False)", show=False, id="scroll-first"),
        Binding("ctrl+end", "scroll_to(True)", show=False, id="scroll-last"),
    ]

    def __init__(self, session: ChatSession, services: Services, engine_jobs: EngineJobs) -> None:
        super().__init__(session, services, engine_jobs)
        self.message_commands = MessageCommands(self)
        self.sidebar_commands = SidebarCommands(self)
        self.settings_commands = ScreenSettings(self)
        self.change_settings = self.settings_commands.run
        self.finding = ConversationFinder(self)
        self.commands = ScreenCommands(self, self.message_commands, self.finding, self.settings_commands)
        self.typed_tokens = TypedTokens(self)
        self._argument_names: Arguments | None = None
        self.presenter = Presenter(self, AnswerDisplay(self, self.typed_tokens.changed))

    def on_mount(self) -> None:
        """Show what is on disk; the model is loaded once this has been painted."""
        self.sides.arrived(self)
        self.prompt.situation = self.situation
        self.prompt.count = self.count_tokens
        self.prompt.arguments = self._arguments
        self.composer.recall.older = self.services.typed.texts
        self.composer.use_vi(self.services.shelf.settings.editing == "vi")
        self.transcript.code_style = pygments_style(self.terminal.themes.themes[self.services.theme])
        self.transcript.underscores = self.services.shelf.settings.underscores
        self.use_keys(self.keys)
        info = self.model.info
        context = None if info is None else info.max_seq_len
        self.status.facts = StatusFacts(model=self.model.name, activity=self.model.activity, context_max=context)
        last = self._last_written() if self.services.continue_last else None
        restored = self.tabs.restore()
        if self.services.first_message is not None and restored:
            self.tabs.open_new("")
        elif not (restored if last is None else self.open_conversation(last)):
            self.start_new()
            self.show_conversation()
        self.composer.focus()
        for notice in self.services.notices:
            self.tell(notice, warning=True)
        if self.services.first_message is not None:
            self._take(self.services.first_message)

    def _last_written(self) -> str | None:
        try:
            return newest(self.session.store)
        except StoreError as error:
            self.tell(str(error), warning=True)
            return None

    # Typing

    def _arguments(self, line: str) -> tuple[str, list[tuple[str, str]]]:
        if self._argument_names is None:
            # No start needs it.
            from exlchat.app.composer.arguments import Arguments

            self._argument_names = Arguments(
                self.session, self.shelf, themes=lambda: self.terminal.themes.themes, listed=self.summaries
            )
        return self._argument_names.behind(line)

    @on(Composer.Submitted)
    def _take_input(self, event: Composer.Submitted) -> None:
        """What cannot be sent or done goes back into the composer."""
        text = event.text
        if self.editing:
            attempt(self, lambda: self.message_commands.submit_edit(text))
        else:
            self._take(text)

    def _take(self, text: str) -> None:
        """A prompt or a command. Of a command that is refused, the history has what was typed."""
        if (line := self.services.typed.add(text)) is not None:
            self.tell(line, warning=True)
        match parse_input(text):
            case BadCommand(line=line):
                self.composer.refuse(text)
                self.tell(line, warning=True)
            case Command(action=action, argument=argument):
                # The command itself is no draft any more, which an export would carry along.
                self.unsent.keep()
                if not self.commands.run(action.id, argument) and argument:
                    self.composer.refuse(text)
            case prompt if prompt.text:
                try:
                    self.send(with_files(prompt.text, Path.cwd()))
                except MentionError as error:
                    self.not_sent(prompt.text, error)

    @on(TextArea.Changed, "#composer")
    def _typed(self) -> None:
        self.unsent.keep_soon()
        self.typed_tokens.changed()

    # Sidebar

    @on(Sidebar.Chosen)
    def _open_chosen(self, event: Sidebar.Chosen) -> None:
        if self.open_conversation(event.conversation_id):
            self.leave_sidebar()

    @on(TabRow.Chosen)
    def _tab_chosen(self, event: TabRow.Chosen) -> None:
        attempt(self, lambda: self.tabs.go_to(event.ident))

    @on(Sidebar.Wanted)
    def _wanted_of_chosen(self, event: Sidebar.Wanted) -> None:
        self.sidebar_commands.run(event.action_id, event.conversation_ids)

    @on(Sidebar.UndoWanted)
    def _undo_in_list(self) -> None:
        attempt(self, lambda: undo_in_list(self))

    @on(Sidebar.Left)
    def _sidebar_left(self) -> None:
        self.leave_sidebar()

    def on_resize(self, event: events.Resize) -> None:
        """A terminal that becomes narrow keeps the conversation in sight, not the list."""
        if event.size.width < NARROW_CELLS and self.sidebar_shown and not self.sidebar.has_focus:
            self.show_sidebar(False)

    # Messages

    @on(events.DescendantFocus)
    def _focus_moved(self) -> None:
        self.composer.hint_at_keys(self.transcript.has_focus)

    @on(Transcript.Wanted)
    def _message_wanted(self, event: Transcript.Wanted) -> None:
        self.commands.run_at_cursor(event.action_id, event.key)

    @on(Transcript.LinkClicked)
    def _link_clicked(self, event: Transcript.LinkClicked) -> None:
        self.message_commands.links.ask(event.target)

    @on(FindBar.Wanted)
    def _find(self, event: FindBar.Wanted) -> None:
        self.finding.look_for(event.text)

    @on(FindBar.Step)
    def _find_next(self, event: FindBar.Step) -> None:
        self.finding.step(event.by)

    @on(FindBar.Left)
    def _find_left(self) -> None:
        self.finding.leave()

    # The jobs of the engine

    @on(EngineReport)
    def _engine_reported(self, event: EngineReport) -> None:
        self.presenter.take(event.report)
        if self.services.kept and not isinstance(event.report, JobEvent | JobEnded | Answered):
            self.sides.heard(event.report)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key of an action that cannot be done now says why; only that of stopping is silent and passed on."""
        if action != "act" or parameters != ("stop",):
            return True
        if self.is_mounted and (self.prompt.offering or self.editing):
            return True
        return BY_ID["stop"].available(self.situation())

    def action_act(self, action_id: str) -> None:
        self.commands.run(action_id)

    def action_scroll_page(self, pages: int) -> None:
        self.transcript.scroll_relative(y=pages * max(1, self.transcript.size.height - 1), animate=False)

    def action_scroll_to(self, end: bool) -> None:
        if end:
            self.transcript.scroll_to_end()
        else:
            self.transcript.scroll_home(animate=False)

    # The command palette

    def palette_entries(self) -> tuple[list[PaletteEntry], list[PaletteEntry]]:
        """Actions that can be done now and themes; conversations, newest first."""
        fixed = [*self.commands.palette_actions(), *self.commands.palette_themes()]
        return fixed, list(self.commands.palette_conversations(self.summaries()))

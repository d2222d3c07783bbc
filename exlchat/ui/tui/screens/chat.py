"""The one screen of the app: sidebar, transcript, composer, status line. Widgets meet the chat session here."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events, getters, on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static, TextArea

from exlchat.app.chat.message_words import welcome_lines
from exlchat.app.chat.unsent import Unsent
from exlchat.app.commands.actions import ACTIONS, BY_ID, Situation
from exlchat.app.commands.chat import situation_of
from exlchat.app.panels.figures import StatusFacts
from exlchat.app.runtime.jobs import Report
from exlchat.chat.store.conversations import StoreError
from exlchat.ui.render.themes import pygments_style
from exlchat.ui.tui.answer_display import AnswerDisplay
from exlchat.ui.tui.commands import Commands, PaletteEntry
from exlchat.ui.tui.finding import Finding
from exlchat.ui.tui.items import UNANSWERED, branch_items, message_items, thoughts_key
from exlchat.ui.tui.message_commands import MessageCommands
from exlchat.ui.tui.model_commands import ScreenModelCommands
from exlchat.ui.tui.model_display import ModelDisplay
from exlchat.ui.tui.palette import ChatProvider
from exlchat.ui.tui.pickers import Pickers
from exlchat.ui.tui.screens.line import LineScreen
from exlchat.ui.tui.sending import Sending
from exlchat.ui.tui.settings_commands import ScreenSettings
from exlchat.ui.tui.typed_tokens import TypedTokens
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.find_bar import FindBar
from exlchat.ui.tui.widgets.prompt_area import PromptArea
from exlchat.ui.tui.widgets.sidebar import Sidebar
from exlchat.ui.tui.widgets.status_line import StatusLine
from exlchat.ui.tui.widgets.transcript import Transcript, TranscriptItem
from exlchat.ui.tui.widgets.welcome import Welcome, welcome_keys
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.runtime.engine_thread import EngineThread
    from exlchat.app.services import Services
    from exlchat.chat.model import ConversationSummary
    from exlchat.chat.model import Message as ChatMessage

NARROW_CELLS = 80
_SIDE_OPEN = "-side-open"


@dataclass
class EngineReport(Message):
    """Something the engine thread has posted."""

    report: Report


def _bindings() -> list[BindingType]:
    everywhere = [action for action in ACTIONS if action.place == "everywhere" and action.keys]
    return [
        Binding(",".join(action.keys), f"act('{action.id}')", action.title, show=False, id=action.id)
        for action in everywhere
        if not action.id.startswith("scroll-")
    ]


class ChatScreen(Screen[None]):
    """Shows the session and passes on what is pressed; owns no conversation state of its own."""

    COMMANDS: ClassVar = {ChatProvider}
    BINDINGS: ClassVar[list[BindingType]] = [
        *_bindings(),
        Binding("pageup", "scroll_page(-1)", show=False, id="scroll-page-up"),
        Binding("pagedown", "scroll_page(1)", show=False, id="scroll-page-down"),
        Binding("ctrl+home", "scroll_to(False)", show=False, id="scroll-first"),
        Binding("ctrl+end", "scroll_to(True)", show=False, id="scroll-last"),
    ]

    transcript = getters.query_one("#transcript", Transcript)
    welcome = getters.query_one("#welcome", Welcome)
    prompt = getters.query_one("#prompt", PromptArea)
    composer = getters.query_one("#composer", Composer)
    sidebar = getters.query_one("#conversations", Sidebar)
    side = getters.query_one("#side", Vertical)
    find_bar = getters.query_one("#find-bar", FindBar)
    status = getters.query_one("#status", StatusLine)

    def __init__(self, session: ChatSession, services: Services, engine_thread: EngineThread) -> None:
        super().__init__(id="chat")
        self.change_model = engine_thread.load
        self.count_tokens = engine_thread.count
        self.session = session
        self.services = services
        self.model = ModelDisplay(self, services.model_name, is_guide=services.is_guide)
        self.model_commands = ScreenModelCommands(self)
        self.message_commands = MessageCommands(self)
        self.pickers = Pickers(self)
        self.settings_commands = ScreenSettings(self)
        self.sending = Sending(self)
        self.finding = Finding(self)
        self.commands = Commands(self)
        self.keys = services.keys
        self.answers = AnswerDisplay(self)
        self.unsent = Unsent(
            session,
            services.drafts,
            typed=lambda: self.composer.typed if self.query("#composer") else None,
            later=lambda seconds, keep: self.set_timer(seconds, keep).stop,
            warn=lambda line: self.tell(line, warning=True),
        )
        self.typed_tokens = TypedTokens(self)
        self._notes = 0

    def compose(self) -> ComposeResult:
        """Sidebar on the left; the rest in one column."""
        # Not behind the mounting: then everything would be styled again.
        self.set_class(self.services.sidebar and self.app.size.width >= NARROW_CELLS, _SIDE_OPEN)
        with Horizontal():
            with Vertical(id="side"):
                yield Static("exlchat", id="mark", markup=False)
                yield Sidebar(id="conversations", markup=False)
            with Vertical(id="main"):
                yield Transcript(id="transcript")
                yield Welcome(id="welcome")
                yield FindBar(id="find-bar")
                yield PromptArea(id="prompt")
                yield StatusLine(id="status")

    def on_mount(self) -> None:
        """Show what is on disk; the model is loaded once this has been painted."""
        self.prompt.situation = self.situation
        self.prompt.count = self.count_tokens
        self.composer.recall.older = self.services.typed.texts
        self.composer.use_vi(self.services.shelf.settings.editing == "vi")
        self.transcript.code_style = pygments_style(self.services.themes[self.services.theme])
        self.use_keys(self.keys)
        self.status.facts = StatusFacts(model=self.model.name, activity="loading")
        newest = next(iter(self._summaries()), None) if self.services.continue_last else None
        if newest is None or not self.open_conversation(newest.id):
            self._start_new()
            self.show_conversation()
        self.composer.focus()
        for notice in self.services.notices:
            self.tell(notice, warning=True)

    def use_keys(self, keys: Keymap) -> None:
        """Have these keys do what they are for, here and in the widgets."""
        self.keys = keys
        self.app.set_keymap(keys.bindings())
        self.composer.use_keys(keys)
        self.transcript.fold_key = keys.keys("fold-code")[0]

    # What is shown

    def tell(self, line: str, *, warning: bool = False) -> None:
        """A line that goes away by itself; /log has it."""
        self.services.log.say(line, warning=warning)
        self.notify(
            printable(line),
            severity="warning" if warning else "information",
            markup=False,
            timeout=12 if warning else 5,
        )

    def tell_desktop(self, line: str) -> None:
        """Have the terminal say a line of the program's own outside of its window: OSC 9, and the bell for others."""
        driver = self.app._driver
        if driver is not None:
            driver.write(f"\x1b]9;{printable(line)}\x07")
        self.app.bell()

    def note(self, text: str) -> None:
        """A remark of the program in the transcript; not part of the conversation, so never on disk."""
        if not self.session.branch:
            self.tell(text)
            return
        self._notes += 1
        self.transcript.append_message(TranscriptItem(f"note:{self._notes}", "notice", text))

    def take_away(self, key: str) -> None:
        """Remove an item of the transcript if it is there."""
        with contextlib.suppress(KeyError):
            self.transcript.remove_message(key)

    def show_conversation(self) -> None:
        """Show the open conversation from its beginning to its tip, with its draft."""
        self.message_commands.end_edit()
        self.show_messages()
        self.composer.set_text(self.unsent.text())
        self.answers.show_figures_of(self.session.last_answer)

    def show_messages(self, *, but: str | None = None, at: str | None = None) -> None:
        """Show the messages of the open conversation anew: without that of the id `but`, with the cursor `at` one."""
        session = self.session
        items = branch_items(session.branch, session.answering, session.places)
        hidden = () if but is None else (but, thoughts_key(but))
        self.transcript.set_messages([item for item in items if item.key not in hidden])
        self.answers.show_waiting()
        if at is not None and self.transcript.holds(at):
            self.transcript.move_cursor_to(at)
        else:
            self.transcript.scroll_to_end()
        self.refresh_around()

    def show_prompt(self, prompt: ChatMessage) -> None:
        """Add a prompt that was just put on disk."""
        if len(self.session.branch) <= 2:
            self.show_messages()
            return
        self.take_away(UNANSWERED)
        for item in message_items(prompt, self.session.places):
            self.transcript.append_message(item)
        self.answers.show_waiting()
        self.transcript.scroll_to_end()
        self.refresh_around()

    def refresh_around(self) -> None:
        """Bring everything beside the transcript up to date with the session."""
        session = self.session
        self.prompt.queued.prompts = session.waiting_prompts(session.conversation_id)
        self.composer.recall.set_here([message.text for message in session.branch if message.role == "user"])
        empty = not session.branch
        keys, model = welcome_keys(self.keys), self.model
        self.welcome.lines = tuple(welcome_lines(model.name, is_guide=model.is_guide, keys=keys, failure=model.failure))
        self.welcome.display = empty
        self.transcript.display = not empty
        writing = session.being_written
        answering = writing.conversation_id if writing else None
        self.sidebar.show(self._summaries(), session.conversation_id, answering, datetime.date.today())
        self.refresh_bindings()

    def show_sidebar(self, shown: bool) -> None:
        """Show or hide the sidebar; in a narrow terminal it takes the place of the conversation."""
        if not shown and self.sidebar.has_focus:
            self.composer.focus()
        self.set_class(shown, _SIDE_OPEN)
        if shown and self.has_class("-narrow"):
            self.sidebar.focus()

    @property
    def sidebar_shown(self) -> bool:
        """Whether the sidebar is there."""
        return self.has_class(_SIDE_OPEN)

    def _summaries(self) -> list[ConversationSummary]:
        try:
            return self.session.store.list_conversations()
        except StoreError as error:
            self.tell(str(error), warning=True)
            return []

    # Conversations

    def open_conversation(self, conversation_id: str) -> bool:
        """Leave the open conversation for another; whether that could be read."""
        self.unsent.keep()
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
        self._start_new()
        self.show_conversation()
        self.composer.focus()

    def _start_new(self) -> None:
        try:
            self.session.start_new()
        except StoreError as error:
            self.tell(str(error), warning=True)

    def ask_title(self, conversation_id: str) -> None:
        """Ask for a new title of a conversation."""
        try:
            title = self.session.store.load(conversation_id).title
        except StoreError as error:
            self.tell(str(error), warning=True)
            return
        asked = LineScreen("Rename", title, hint="Enter keeps · Esc leaves")
        self.app.push_screen(asked, lambda new: self.commands.rename_to(conversation_id, new))

    # Typing

    @on(Composer.Submitted)
    def _take_input(self, event: Composer.Submitted) -> None:
        self.sending.take(event.text)

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> None:
        """Send a prompt, or let it wait for the present answer; what cannot be written goes back into the composer."""
        self.sending.send(text, generation=generation)

    @on(TextArea.Changed, "#composer")
    def _typed(self) -> None:
        self.unsent.keep_soon()
        self.typed_tokens.changed()

    # Sidebar

    @on(Sidebar.Chosen)
    def _open_chosen(self, event: Sidebar.Chosen) -> None:
        if self.open_conversation(event.conversation_id):
            self._leave_sidebar()

    @on(Sidebar.RenameWanted)
    def _rename_chosen(self, event: Sidebar.RenameWanted) -> None:
        self.ask_title(event.conversation_id)

    @on(Sidebar.DeleteWanted)
    def _delete_chosen(self, event: Sidebar.DeleteWanted) -> None:
        self.commands.delete_conversation(event.conversation_id)

    @on(Sidebar.UndoWanted)
    def _undo_delete(self) -> None:
        self.commands.attempt(self.message_commands.undo_delete)

    @on(Sidebar.Left)
    def _leave_sidebar(self) -> None:
        if self.has_class("-narrow"):
            self.show_sidebar(False)
        self.composer.focus()

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

    # The engine thread

    @on(EngineReport)
    def _engine_reported(self, event: EngineReport) -> None:
        self.answers.take(event.report)

    # Actions

    def situation(self) -> Situation:
        """What the availability of actions depends on."""
        return situation_of(self.session)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key of an action that cannot be done now says why; only that of stopping is silent and passed on."""
        if action != "act" or parameters != ("stop",):
            return True
        if self.is_mounted and (self.prompt.offering or self.message_commands.editing):
            return True
        return BY_ID["stop"].available(self.situation())

    def action_act(self, action_id: str) -> None:
        """Do an action of the registry."""
        self.commands.run(action_id)

    def action_scroll_page(self, pages: int) -> None:
        """Scroll the conversation by pages."""
        self.transcript.scroll_relative(y=pages * max(1, self.transcript.size.height - 1), animate=False)

    def action_scroll_to(self, end: bool) -> None:
        """Go to the first or last line."""
        if end:
            self.transcript.scroll_to_end()
        else:
            self.transcript.scroll_home(animate=False)

    # The command palette

    def palette_entries(self) -> tuple[list[PaletteEntry], list[PaletteEntry]]:
        """Actions that can be done now and themes; conversations, newest first."""
        fixed = [*self.commands.palette_actions(), *self.commands.palette_themes()]
        return fixed, list(self.commands.palette_conversations(self._summaries()))

"""What is on the one screen of the app: sidebar, transcript, composer, status line; and what the chat has it show."""

from __future__ import annotations

import contextlib
import datetime
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

from textual import getters
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Static

from exlchat.app.chat import tree_actions
from exlchat.app.chat.elsewhere import Elsewhere
from exlchat.app.chat.list_order import in_order
from exlchat.app.chat.message_words import names_over, other_model_line, welcome_lines
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.chat.unsent import Unsent
from exlchat.app.commands.action import attempt
from exlchat.app.commands.actions import situation_of
from exlchat.app.commands.cache import questions_wait_for
from exlchat.app.commands.conversations import rename_to
from exlchat.app.panels.figures import StatusFacts, facts_of
from exlchat.app.panels.serving import serving_line
from exlchat.app.presenter import waits_for
from exlchat.app.runtime.model_state import ModelState
from exlchat.app.runtime.model_switch import ModelSwitch
from exlchat.app.serving.shared import SharedServer
from exlchat.chat.store.conversations import StoreError
from exlchat.ui.tui.items import (
    UNANSWERED,
    branch_items,
    message_items,
    name_key,
    thoughts_key,
    waiting_item,
    waiting_key,
)
from exlchat.ui.tui.tab_commands import ConversationTabs, Sides
from exlchat.ui.tui.terminal_app import TerminalApp
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.find_bar import FindBar
from exlchat.ui.tui.widgets.prompt_area import PromptArea
from exlchat.ui.tui.widgets.sidebar import Sidebar
from exlchat.ui.tui.widgets.status_line import StatusLine, WhoSpeaks
from exlchat.ui.tui.widgets.tab_row import TabRow
from exlchat.ui.tui.widgets.transcript import Transcript, TranscriptItem
from exlchat.ui.tui.widgets.welcome import Welcome, welcome_keys
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.app import ComposeResult
    from textual.timer import Timer

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.commands.action import Situation
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.keys.keymap import Keymap
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.log import Log
    from exlchat.app.runtime.engine_jobs import EngineJobs
    from exlchat.app.services import Services
    from exlchat.chat.model import ConversationSummary
    from exlchat.chat.model import Message as ChatMessage
    from exlchat.chat.turn_plan import Beginning

NARROW_CELLS = 80
_SIDE_OPEN = "-side-open"
_SERVING_SECONDS = 1.0
_NOTHING_LISTED = "-nothing-listed"


class ChatView(Screen[None]):
    """Shows the session; owns no conversation state of its own."""

    change_settings: Callable[[str], None]
    """As of `View`; set by who makes the screen of them."""
    sides: Sides
    """This screen and the one beside it; set by who makes them."""

    transcript = getters.query_one("#transcript", Transcript)
    welcome = getters.query_one("#welcome", Welcome)
    prompt = getters.query_one("#prompt", PromptArea)
    composer = getters.query_one("#composer", Composer)
    sidebar = getters.query_one("#conversations", Sidebar)
    tab_row = getters.query_one("#tab-row", TabRow)
    side = getters.query_one("#side", Vertical)
    find_bar = getters.query_one("#find-bar", FindBar)
    status = getters.query_one("#status", StatusLine)

    def __init__(self, session: ChatSession, services: Services, engine_jobs: EngineJobs) -> None:
        super().__init__()
        self.count_tokens = engine_jobs.count
        self.session = session
        self.services = services
        self.model = ModelState(services.model_name, is_guide=services.is_guide)
        self.models = ModelSwitch(session, services.shelf, engine_jobs.load, self.tell)
        self.serving = SharedServer(engine_jobs, services.shelf)
        self.keys = services.keys
        self.unsent = Unsent(
            session,
            services.drafts,
            typed=lambda: self.composer.typed if self.query("#composer") else None,
            show=self._show_draft,
            later=lambda seconds, keep: self.later(seconds, keep).stop,
            warn=lambda line: self.tell(line, warning=True),
            remember=services.typed.add,
        )
        self.elsewhere = Elsewhere(self)
        self.tabs = ConversationTabs(self)
        self.edited: str | None = None
        """Id of the message that is being changed in the composer."""
        self._notes = 0
        self._serving_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        # Not behind the mounting: then everything would be styled again.
        self.set_class(self.services.sidebar and self.app.size.width >= NARROW_CELLS, _SIDE_OPEN)
        with Horizontal():
            with Vertical(id="side"):
                yield Static("exlchat", id="mark", markup=False)
                yield Sidebar(id="conversations", markup=False)
            with Vertical(id="main"):
                yield TabRow(id="tab-row")
                yield Transcript(id="transcript")
                yield Welcome(id="welcome")
                yield FindBar(id="find-bar")
                yield PromptArea(id="prompt")
                yield StatusLine(id="status")

    # As of `View`

    @property
    def shelf(self) -> Shelf:
        return self.services.shelf

    @property
    def said(self) -> Log:
        return self.services.log

    @property
    def terminal(self) -> TerminalApp:
        app = self.app
        assert isinstance(app, TerminalApp)
        return app

    @property
    def in_sight(self) -> bool:
        """Whether it is the one of two such screens that is shown, by itself or below others."""
        return self in self.app.screen_stack

    def share_model(self, other: ChatView) -> None:
        """Begin with the model as another screen knows it, and change it for both."""
        self.model = copy(other.model)
        self.session.lacks = other.session.lacks
        self.models = other.models
        self.models.join(self.session)
        self.serving = other.serving
        self.serving_changed()

    @property
    def theme_in_use(self) -> str:
        return self.app.theme

    def theme_names(self) -> Iterable[str]:
        return self.terminal.reload_themes()

    def choose_theme(self, name: str) -> None:
        self.terminal.choose_theme(name)

    def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)

    def leave(self) -> None:
        self.terminal.leave()

    def write_in_editor(self) -> None:
        written = self.terminal.in_editor(self.composer.text)
        if written is not None:
            self.composer.take(written)
        self.composer.focus()

    def situation(self) -> Situation:
        return situation_of(self.session)

    def use_keys(self, keys: Keymap) -> None:
        self.keys = keys
        self.app.set_keymap(keys.bindings())
        self.composer.use_keys(keys)
        self.transcript.fold_key = keys.keys("fold-code")[0]

    # What is shown

    def tell(self, line: str, *, warning: bool = False) -> None:
        """A line that goes away by itself; /log has it."""
        self.services.log.say(line, warning=warning)
        if any(toast.message == printable(line) for toast in self.app._notifications):
            # It can be read already.
            return
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
        if not self.session.branch:
            self.tell(text)
            return
        self._notes += 1
        self.transcript.append_message(TranscriptItem(f"note:{self._notes}", "notice", text))

    def show_rows(self, title: str, rows: Sequence[tuple[str, str]], *, late: str = "") -> None:
        """In a panel; what was waited for in a line, where that would come between somebody and what they do."""
        # No start needs it.
        from exlchat.ui.tui.screens.rows import RowsScreen

        if isinstance(self.app.screen, RowsScreen) and self.app.screen.heading == title:
            self.app.screen.show_rows(rows)
        elif late and (self.composer.text or self.app.screen is not self):
            self.tell(late)
        else:
            self.app.push_screen(RowsScreen(title, rows))

    def show_serving(self) -> None:
        # No start needs it.
        from exlchat.ui.tui.screens.serving import ServingScreen

        self.app.push_screen(ServingScreen(self.serving))

    def serving_changed(self) -> None:
        self.status.serving = serving_line(self.serving)
        if self.serving.place and self._serving_timer is None:
            self._serving_timer = self.set_interval(_SERVING_SECONDS, self.serving_changed)
        elif not self.serving.place and self._serving_timer is not None:
            self._serving_timer.stop()
            self._serving_timer = None

    def take_away(self, key: str) -> None:
        with contextlib.suppress(KeyError):
            self.transcript.remove_message(key)

    def show_conversation(self) -> None:
        self.end_edit()
        self.transcript.look_for(self.find_bar.field.value if self.find_bar.display else "")
        self.show_messages()
        self.composer.set_text(self.unsent.text())
        self.tabs.take_place()
        self.show_figures()

    def show_messages(self, *, but: str | None = None, at: str | None = None) -> None:
        """Show the messages of the open conversation anew: without that of the id `but`, with the cursor `at` one."""
        session = self.session
        items = branch_items(session.branch, session.answering, session.places)
        hidden = () if but is None else (but, thoughts_key(but), name_key(but))
        self.transcript.set_messages([item for item in items if item.key not in hidden])
        self.show_waiting()
        if at is not None and self.transcript.holds(at):
            self.transcript.move_cursor_to(at)
        else:
            self.transcript.scroll_to_end()
        self.refresh_around()

    def show_branch(self, at: str | None = None) -> None:
        self.show_messages(at=at)

    def show_prompt(self, prompt: ChatMessage) -> None:
        if sum(message.role == "user" for message in self.session.branch) == 1:
            # Before it there may have been another screen, and a greeting says no longer that there are others.
            self.show_messages()
            return
        self.take_away(UNANSWERED)
        name = names_over(self.session.branch).get(prompt.id, "")
        for item in message_items(prompt, self.session.places, name):
            self.transcript.append_message(item)
        self.show_waiting()
        self.transcript.scroll_to_end()
        self.refresh_around()

    def show_waiting(self) -> None:
        answering = self.session.answering
        if answering is None or answering.message is not None:
            return
        self.take_away(waiting_key(answering.conversation_id))
        if (line := waits_for(self.session, self.model)) is not None:
            self.transcript.append_message(waiting_item(answering.conversation_id, line))

    def show_figures(self) -> None:
        empty = not self.session.branch
        self.facts = facts_of(self.session.last_answer, self.model.info, self.facts, empty=empty)

    @property
    def facts(self) -> StatusFacts:
        return self.status.facts

    @facts.setter
    def facts(self, facts: StatusFacts) -> None:
        self.status.facts = facts

    def later(self, seconds: float, what: Callable[[], None]) -> Timer:
        return self.set_timer(seconds, what)

    def show_probabilities(self, message_id: str) -> None:
        session = self.session
        tree_actions.require_laid_open(session, message_id)
        if self.model.info is None and self.model.failure is not None:
            raise NotPossibleError(f"there is no model to compute probabilities: {self.model.failure}")
        # No start needs it.
        from exlchat.ui.tui.screens.probabilities import ProbabilitiesScreen

        ask = partial(
            session.questions.chances,
            session.require_open(),
            message_id,
            template=session.template,
            policy=session.generation.context_policy,
        )

        def taken(beginning: Beginning | None) -> None:
            if beginning is not None:
                attempt(self, lambda: session.take_token(message_id, beginning))
                self.show_messages()

        self.app.push_screen(ProbabilitiesScreen(ask, partial(questions_wait_for, self)), taken)

    def show_spoken(self) -> None:
        spoken = self.session.spoken
        self.status.who = WhoSpeaks(spoken.who, spoken.words, self.services.kept)

    def refresh_around(self) -> None:
        session = self.session
        self.show_spoken()
        self.prompt.queued.prompts = session.waiting_prompts(session.conversation_id)
        self.composer.recall.set_here([message.text for message in session.branch if message.role == "user"])
        empty = not session.branch
        keys, model = welcome_keys(self.keys), self.model
        self.welcome.lines = tuple(welcome_lines(model.name, is_guide=model.is_guide, keys=keys, failure=model.failure))
        self.welcome.display = empty
        self.transcript.display = not empty
        summaries = self.summaries()
        self.tabs.refresh(summaries)
        # Where one has just deleted the last of them, the key that brings it back is a key of the list.
        self.set_class(not summaries and not session.list_history, _NOTHING_LISTED)
        self.sidebar.show(summaries, session.conversation_id, session.being_answered, datetime.date.today())
        self.refresh_bindings()

    def show_sidebar(self, shown: bool) -> None:
        """Show or hide the sidebar; in a narrow terminal it takes the place of the conversation."""
        if not shown and self.sidebar.has_focus:
            self.composer.focus()
        self.set_class(shown, _SIDE_OPEN)
        if shown and self.has_class("-narrow"):
            self.sidebar.focus()

    def leave_sidebar(self) -> None:
        if self.has_class("-narrow"):
            self.show_sidebar(False)
        self.composer.focus()

    def list_conversations(self) -> None:
        if self.has_class(_NOTHING_LISTED):
            raise NotPossibleError("there is no conversation yet; what you write begins one")
        self.show_sidebar(True)
        self.sidebar.focus()

    @property
    def sidebar_shown(self) -> bool:
        return self.has_class(_SIDE_OPEN)

    def summaries(self) -> list[ConversationSummary]:
        """All conversations, as the list has them; none when they cannot be read."""
        try:
            return in_order(self.session.store.list_conversations())
        except StoreError as error:
            self.tell(str(error), warning=True)
            return []

    # Conversations

    def leave_conversation(self) -> None:
        """Another one is to be shown: keep what is typed, and where somebody is."""
        self.unsent.keep()
        self.tabs.leave_place()

    def open_conversation(self, conversation_id: str) -> bool:
        self.leave_conversation()
        try:
            self.session.open(conversation_id)
        except StoreError as error:
            self.tell(str(error), warning=True)
            return False
        self.show_conversation()
        if line := other_model_line(self.session.branch, self.model.info):
            self.tell(line)
        return True

    def new_conversation(self) -> None:
        self.leave_conversation()
        self.start_new()
        self.show_conversation()
        self.composer.focus()

    def start_new(self) -> None:
        try:
            self.session.start_new()
        except StoreError as error:
            self.tell(str(error), warning=True)

    def ask_title(self, conversation_id: str) -> None:
        try:
            title = self.session.store.load(conversation_id).title
        except StoreError as error:
            self.tell(str(error), warning=True)
            return
        # No start needs it.
        from exlchat.ui.tui.screens.line import InputScreen

        asked = InputScreen("Rename", title, hint="Enter keeps · Esc leaves")
        self.app.push_screen(asked, lambda new: rename_to(self, conversation_id, new))

    # What is typed

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> None:
        """Send a prompt, or let it wait for the present answer; what cannot be written goes back into the composer."""
        session = self.session
        if not self.elsewhere.require_shown():
            self.composer.give_back(text)
            self.tell("Not sent yet: look at what came from another program; Enter sends behind it", warning=True)
            return
        old_draft_of = session.draft_id
        try:
            message = session.send(text, generation=generation)
        except StoreError as error:
            self.not_sent(text, error)
            return
        if old_draft_of is None:
            self.unsent.forget_new()
        self.unsent.keep()
        if message is None:
            self.refresh_around()
        else:
            self.show_prompt(message)

    def not_sent(self, text: str, error: Exception) -> None:
        """Back into the composer with it."""
        self.composer.give_back(text)
        self.tell(f"Not sent: {error}", warning=True)

    def _show_draft(self, text: str) -> None:
        self.composer.hear(text)

    @property
    def editing(self) -> bool:
        return self.edited is not None

    def end_edit(self, *, kept: bool = False) -> bool:
        """What was changed and is not kept can be brought back as what was typed before is."""
        if self.edited is None:
            return False
        self.edited = None
        if not kept and self.composer.text != self.prompt.text_to_edit:
            self.services.typed.add(self.composer.text)
        self.prompt.end_edit()
        self.refresh_bindings()
        return True

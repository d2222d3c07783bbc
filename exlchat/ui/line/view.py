"""What the line mode shows: one session on one console."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from exlchat.app.chat.elsewhere import Elsewhere
from exlchat.app.chat.list_order import in_order
from exlchat.app.chat.message_words import other_model_line
from exlchat.app.chat.session import ChatSession, NotPossibleError
from exlchat.app.chat.unsent import Unsent
from exlchat.app.commands.cache import questions_wait_for
from exlchat.app.commands.conversations import TITLE_CELLS
from exlchat.app.live_themes import LiveThemes
from exlchat.app.panels.figures import StatusFacts, facts_of
from exlchat.app.panels.serving import serving_rows
from exlchat.app.runtime.engine_jobs import EngineJobs
from exlchat.app.runtime.errors import told_error
from exlchat.app.runtime.model_state import ModelState
from exlchat.app.runtime.model_switch import ModelSwitch
from exlchat.app.serving.shared import SharedServer
from exlchat.chat.store.conversations import StoreError
from exlchat.config.files import SettingsError, save_setting
from exlchat.ui.line.editing import Editing
from exlchat.ui.line.message_lists import day_of
from exlchat.ui.line.scrollback import Scrollback
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.log import Log
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.services import Services
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.chat.model import ConversationSummary
    from exlchat.config.themes import ThemeFile
    from exlchat.ui.line.console import Console
    from exlchat.ui.line.formatter import Fragments

LISTED = 30
"""How many conversations /open lists."""


class LineView:
    """A `View` in lines. Runs on the thread of the event loop; what is reported and typed goes to `LineChat`."""

    change_settings: Callable[[str], None]
    """As of `View`; set by who makes the rest of the chat."""

    def __init__(self, services: Services, console: Callable[[Self], Console], post: Callable[[Report], None]) -> None:
        """`console` makes what this chat is written on; `post` takes what the jobs report, on their threads."""
        self.loop = asyncio.get_running_loop()
        self.services = services
        self.live_themes = LiveThemes(self, services.themes)
        self.elsewhere = Elsewhere(self)
        self.theme = services.theme
        self.keys = services.keys
        self._facts = StatusFacts(model=services.model_name, activity="loading")
        self.engine_jobs = EngineJobs(services.load_engine, post, name=services.model_name)
        self.session = ChatSession(
            services.store,
            self.engine_jobs,
            defaults=services.defaults,
            persona=services.persona,
            titles=services.titles,
            quoting=services.quoting,
        )
        self.model = ModelState(services.model_name, is_guide=services.is_guide)
        self.console = console(self)
        self.scrollback = Scrollback(self.session, self.model, self.console, self.later)
        self.editing = Editing(self, self.console, services.typed.add)
        self.unsent = Unsent(
            self.session,
            services.drafts,
            typed=self.editing.typed,
            show=self.editing.hear,
            later=lambda seconds, keep: self.loop.call_later(seconds, keep).cancel,
            warn=lambda line: self.tell(line, warning=True),
            remember=services.typed.add,
        )
        self.models = ModelSwitch(self.session, services.shelf, self.engine_jobs.load, self.tell)
        self.serving = SharedServer(self.engine_jobs, services.shelf)
        self.place: tuple[int, int] | None = None
        """Which of how many alternatives the newest answer is."""
        self.leaving = False
        self.not_kept: str | None = None
        """Why something that was written until the end is not on disk."""
        self._background: set[asyncio.Task[None]] = set()

    # What is shown

    def tell(self, line: str, *, warning: bool = False) -> None:
        self.services.log.say(line, warning=warning)
        self.put(self.console.formatter.remark("warning" if warning else "note", line))

    def note(self, text: str) -> None:
        self.scrollback.note(text)

    def put(self, lines: list[Fragments]) -> None:
        self.scrollback.put(lines)

    def show_messages(self) -> None:
        self.scrollback.show_new()
        self.refresh_around()

    def show_conversation(self) -> None:
        self.show(titled=True)

    def show_branch(self, at: str | None = None) -> None:
        """What is on the console is not the branch, so its end is written anew."""
        del at
        self.show_conversation()

    def show(self, *, titled: bool) -> None:
        self.editing.end()
        self.scrollback.show_conversation(titled=titled)
        self.console.set_text(self.unsent.text())
        self.show_figures()
        self.refresh_around()

    @property
    def facts(self) -> StatusFacts:
        return self._facts

    @facts.setter
    def facts(self, facts: StatusFacts) -> None:
        self._facts = facts
        self.console.refresh()

    def refresh_around(self) -> None:
        self.console.refresh()

    def show_spoken(self) -> None:
        self.console.refresh()

    def show_rows(self, title: str, rows: Sequence[tuple[str, str]], *, late: str = "") -> None:
        del title, late
        self.note("\n".join(f"{left}: {right}" if left and right else left or right for left, right in rows))

    def show_serving(self) -> None:
        self.show_rows("Other programs", list(serving_rows(self.serving)))

    def serving_changed(self) -> None:
        self.console.refresh()

    def show_probabilities(self, message_id: str) -> None:
        session, wait = self.session, questions_wait_for(self)
        self.tell("Computing the probabilities…" if wait is None else f"The probabilities are shown when {wait}")
        policy = session.generation.context_policy
        asked = session.require_open(), message_id
        session.questions.chances(*asked, self._tell_chances, template=session.template, policy=policy)

    def _tell_chances(self, chances: AnswerChances | None) -> None:
        if chances is not None:
            # No start needs it.
            from exlchat.app.panels.token_words import chance_lines

            self.note("\n".join(chance_lines(chances)))

    def show_figures(self) -> None:
        answer = self.session.last_answer
        self.facts = facts_of(answer, self.model.info, self.facts, empty=not self.session.branch)
        self.place = None
        if answer is not None:
            try:
                ids = [one.id for one in self.session.store.alternatives(answer.id, gone_on_from=False)]
            except StoreError:
                return
            if len(ids) > 1 and answer.id in ids:
                self.place = (ids.index(answer.id) + 1, len(ids))

    # Conversations

    def open_conversation(self, conversation_id: str) -> bool:
        self.unsent.keep()
        self.leave_answer()
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
        self.unsent.keep()
        self.leave_answer()
        self.note("A new conversation begins.")
        self.start_new()

    def start_new(self) -> None:
        """Open a new conversation, which has no title to be shown."""
        try:
            self.session.start_new()
        except StoreError as error:
            self.tell(str(error), warning=True)
        self.show(titled=False)

    def leave_answer(self) -> None:
        self.scrollback.leave("the answer is kept as far as it comes" if self.leaving else "the answer goes on")

    def summaries(self) -> list[ConversationSummary]:
        """The conversations that /open lists; none when they cannot be read."""
        try:
            return in_order(self.session.store.list_conversations())[:LISTED]
        except StoreError:
            return []

    def list_conversations(self) -> None:
        listed = in_order(self.session.store.list_conversations())
        if not listed:
            raise NotPossibleError("there is no conversation yet")
        opened = self.session.conversation_id
        lines = ["/open N opens one of these:"]
        for number, one in enumerate(listed[:LISTED], 1):
            day = day_of(one.updated_at)
            here = ", open now" if one.id == opened else ""
            lines.append(f"{number:>3}  {one_line(one.title, TITLE_CELLS)} ({one.message_count} messages, {day}{here})")
        if len(listed) > LISTED:
            lines.append(f"and {len(listed) - LISTED} older ones; exlchat sessions search WORDS finds one")
        self.note("\n".join(lines))

    def ask_title(self, conversation_id: str) -> None:
        """Nothing can be asked in lines."""
        del conversation_id
        raise NotPossibleError("/rename needs TITLE: /rename TITLE")

    # What is typed

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> bool:
        """Send a prompt, or let it wait for the present answer; whether it could be written."""
        if not self.elsewhere.require_shown():
            self.tell("Not sent yet: look at what came from another program; Enter sends behind it", warning=True)
            return False
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
            self.scrollback.tell_waiting()
        else:
            self.scrollback.show_sent(message)
        self.refresh_around()
        return True

    def write_in_editor(self) -> None:
        self.console.write_in_editor()

    def copy(self, text: str) -> None:
        self.console.copy(text)

    def leave(self) -> None:
        raise NotImplementedError

    @property
    def shelf(self) -> Shelf:
        return self.services.shelf

    @property
    def said(self) -> Log:
        return self.services.log

    # Themes, and other threads

    def theme_names(self) -> Iterable[str]:
        return self.reload_themes()

    def reload_themes(self) -> Mapping[str, ThemeFile]:
        """Read the user's themes anew; a broken one is named, and the last good reading of it stays."""
        return self.live_themes.read()

    @property
    def themes(self) -> Mapping[str, ThemeFile]:
        """All themes by name, as last read without fault."""
        return self.live_themes.themes

    @property
    def theme_in_use(self) -> str:
        return self.theme

    def use_themes(self, themes: Iterable[ThemeFile]) -> None:
        """Files have changed: new lines come in the new colours, if the theme in use is among them."""
        if any(one.name == self.theme for one in themes):
            self.console.set_theme()
            self.refresh_around()

    def tell_of_theme(self, line: str, *, warning: bool) -> Callable[[], None]:
        """A line that stays: what is given takes nothing away."""
        self.tell(line, warning=warning)
        return lambda: None

    def show_theme(self, name: str) -> None:
        self.theme = name
        self.console.set_theme()

    def choose_theme(self, name: str) -> None:
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
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Call something after a while, unless the chat has been left by then."""
        self.loop.call_later(seconds, lambda: None if self.leaving else what())

"""What each action of the registry does in the app, by whichever door it came."""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual.markup import escape

from exlchat.chat.answer_parts import answer_parts
from exlchat.chat.plain_text import one_line
from exlchat.chat.prompt_format import PromptError
from exlchat.chat.sight import newest_record
from exlchat.chat.store import StoreError
from exlchat.paths import FolderError
from exlchat.ui.actions import ACTIONS, BY_ID
from exlchat.ui.cache_panel import cache_line, cache_rows, cost_line
from exlchat.ui.chat_session import NotPossibleError
from exlchat.ui.tui.message_commands import pin_line
from exlchat.ui.tui.palette import THEME_PREFIX
from exlchat.ui.tui.preset_commands import use_preset
from exlchat.ui.tui.screens.cache import CacheScreen
from exlchat.ui.tui.screens.help import HelpScreen
from exlchat.ui.tui.screens.prompt import PromptScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual.types import IgnoreReturnCallbackType

    from exlchat.chat.conversation import ConversationSummary
    from exlchat.chat.cost import PromptCost
    from exlchat.chat.inspection import Inspected
    from exlchat.engine.events import CacheReport
    from exlchat.ui.tui.app import ChatApp
    from exlchat.ui.tui.screens.chat import ChatScreen

_QUIT_WITHIN_SECONDS = 2.0
_TITLE_CELLS = 60


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """A line of the command palette."""

    title: str
    help: str
    run: IgnoreReturnCallbackType


class Commands:
    """Carries actions out on one screen. Failures are told in one line and change nothing."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._last_ctrl_c = 0.0
        self._by_id: dict[str, Callable[[str], None]] = {
            "stop": self._stop,
            "new": lambda _: screen.new_conversation(),
            "sidebar": self._sidebar,
            "open": self._open,
            "retry": lambda _: self._answer_again(screen.session.retry),
            "continue": lambda _: self._answer_again(screen.session.continue_answer),
            "pin": lambda back: self._pin(back, pinned=True),
            "unpin": lambda back: self._pin(back, pinned=False),
            "summary": lambda _: self._summary(),
            "copy": self._copy,
            "rename": self._rename,
            "delete": self._delete,
            "undo": screen.message_commands.undo,
            "redo": screen.message_commands.redo,
            "messages": self._messages,
            "find": screen.find_bar_open,
            "tree": screen.pickers.tree,
            "compare": screen.message_commands.compare,
            "search": screen.pickers.search,
            "edit": partial(screen.message_commands.counted, "edit"),
            "branch": partial(screen.message_commands.counted, "branch"),
            "cut": partial(screen.message_commands.counted, "cut"),
            "alternative": screen.message_commands.numbered_alternative,
            "system": self._system,
            "persona": lambda name: screen.persona_commands.run(name) if name else screen.pickers.persona(),
            "preset": lambda name: use_preset(screen, name) if name else screen.pickers.preset(),
            "template": self._template,
            "theme": self._theme,
            "set": self._set,
            "model": screen.model_commands.run,
            "models": lambda _: screen.model_commands.choose(),
            "settings": lambda _: screen.settings_commands.open(),
            "stats": lambda _: screen.note(screen.answers.describe_last()),
            "cache": self._cache,
            "cost": self._cost,
            "prompt": self._prompt,
            "palette": lambda _: self._app.action_command_palette(),
            "help": lambda _: self._show_help(),
            "copy-or-stop": self._copy_or_stop,
            "quit": lambda _: self._app.leave(),
        }

    @property
    def _app(self) -> ChatApp:
        from exlchat.ui.tui.app import ChatApp

        app = self._screen.app
        assert isinstance(app, ChatApp)
        return app

    def run(self, action_id: str, argument: str = "") -> bool:
        """Do an action; one that cannot be done says why. Whether it was done."""
        screen = self._screen
        if action_id == "stop" and (screen.prompt.hide_menu() or screen.message_commands.end_edit()):
            return True
        return self.attempt(lambda: self._by_id[action_id](argument))

    def run_at_cursor(self, action_id: str, key: str) -> bool:
        """Do an action to the message under the cursor of the transcript, whose item has the key."""
        if action_id == "leave-messages":
            self._screen.composer.focus()
        elif action_id in ("undo", "redo", "tree"):
            return self.run(action_id)
        return action_id == "leave-messages" or self.attempt(
            lambda: self._screen.message_commands.at_cursor(action_id, key)
        )

    def attempt(self, what: Callable[[], None]) -> bool:
        """Do something; what cannot be done says why. Whether it was done."""
        screen = self._screen
        try:
            what()
        except (StoreError, PromptError, NotPossibleError, FolderError, ValueError) as error:
            screen.tell(str(error), warning=True)
            return False
        return True

    # Answers

    def _stop(self, _: str) -> None:
        self._screen.session.stop()

    def _answer_again(self, begin: Callable[[], None]) -> None:
        begin()
        self._screen.show_messages()

    def _copy(self, _: str) -> None:
        answer = self._screen.session.last_answer
        if answer is None:
            raise NotPossibleError("there is no answer to copy yet")
        self._app.copy_to_clipboard(answer_parts(answer).answer)
        self._screen.tell("Copied the last answer")

    def _messages(self, _: str) -> None:
        if not self._screen.session.branch:
            raise NotPossibleError("there are no messages yet")
        self._screen.transcript.focus()

    def _pin(self, back: str, *, pinned: bool) -> None:
        if back and not back.isdecimal():
            raise NotPossibleError(f"{back!r} is no number of messages counted back from the end, such as 3")
        message = self._screen.session.pin(int(back or 1), pinned)
        self._screen.show_messages()
        self._screen.tell(pin_line(message))

    def _summary(self) -> None:
        record = newest_record(self._screen.session.branch)
        if record is None or not record.summary:
            raise NotPossibleError("the model sees no summary in this conversation")
        self._screen.note(f"Summary of what is no longer seen:\n{record.summary}")

    def _copy_or_stop(self, _: str) -> None:
        screen = self._screen
        now = time.monotonic()
        if selected := screen.get_selected_text():
            self._app.copy_to_clipboard(selected)
            screen.clear_selection()
            screen.tell("Copied")
        elif now - self._last_ctrl_c < _QUIT_WITHIN_SECONDS:
            self._app.leave()
        else:
            self._last_ctrl_c = now
            stopped = screen.session.stop()
            key = screen.keys.keys("copy-or-stop")[0]
            screen.tell(f"Stopped; {key} again quits" if stopped else f"{key} again quits")

    # Conversations

    def _sidebar(self, _: str) -> None:
        screen = self._screen
        if screen.sidebar_shown and screen.sidebar.has_focus:
            screen.show_sidebar(False)
        else:
            self._open("")

    def _open(self, _: str) -> None:
        self._screen.show_sidebar(True)
        self._screen.sidebar.focus()

    def _rename(self, title: str) -> None:
        conversation_id = self._screen.session.conversation_id
        if conversation_id is None:
            raise NotPossibleError("a new conversation has no title yet; write in it first")
        if title:
            self.rename_to(conversation_id, title)
        else:
            self._screen.ask_title(conversation_id)

    def rename_to(self, conversation_id: str, title: str | None) -> None:
        """Give a title that was asked for; `None` keeps the old one."""
        if title is None:
            return
        try:
            self._screen.session.rename(conversation_id, title)
        except StoreError as error:
            self._screen.tell(str(error), warning=True)
        self._screen.refresh_around()

    def _delete(self, _: str) -> None:
        if (conversation_id := self._screen.session.conversation_id) is None:
            raise NotPossibleError("this conversation is new and has nothing to delete")
        self.delete_conversation(conversation_id)

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete with a way back."""
        screen = self._screen
        was_open = conversation_id == screen.session.conversation_id
        if was_open:
            screen.unsent.keep()
        try:
            title = screen.session.delete(conversation_id)
        except StoreError as error:
            screen.tell(str(error), warning=True)
            return
        if was_open:
            screen.show_conversation()
        else:
            screen.refresh_around()
        screen.tell(f"Deleted “{one_line(title, _TITLE_CELLS)}”; /undo brings it back")

    # Settings

    def _system(self, text: str) -> None:
        screen = self._screen
        if text:
            screen.session.set_system(text)
            if screen.session.branch:
                screen.show_messages()
            screen.tell("The system prompt is set")
            if screen.session.last_said is not None:
                self._ask_cost("With it")
        else:
            prompt = screen.session.system_prompt
            screen.note(f"System prompt: {prompt}" if prompt else "There is no system prompt; /system TEXT sets one")

    def _template(self, name: str) -> None:
        session = self._screen.session
        if name:
            self._screen.model.check_template(name)
            session.template = None if name == "model" else name
            self._screen.tell(f"The prompt template is {name} from the next message on")
            if session.last_said is not None:
                self._ask_cost("With it")
        else:
            self._screen.pickers.template()

    def _theme(self, name: str) -> None:
        themes = self._app.reload_themes()
        if name in themes:
            self._app.choose_theme(name)
        elif name:
            nearest = difflib.get_close_matches(name, themes, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(themes)}"
            raise NotPossibleError(f"there is no theme {name}; {hint}")
        else:
            self._screen.note(f"Theme: {self._app.theme}. There are {', '.join(themes)}; /theme NAME chooses one")

    def _set(self, argument: str) -> None:
        session = self._screen.session
        words = argument.replace("=", " ").split()
        if len(words) == 2:
            session.generation = session.generation.with_value(*words)
        elif words:
            raise NotPossibleError("/set needs a name and a value, such as /set temperature 0.7")
        self._screen.note(session.generation.describe())

    # The cache

    def _cache(self, _: str) -> None:
        wait = self._screen.answers.questions_wait_for()
        if wait is not None:
            self._screen.tell(f"The cache is shown when {wait}")
        self._screen.session.questions.cache(partial(self._show_cache, late=wait is not None))

    def _show_cache(self, report: CacheReport, *, late: bool) -> None:
        """In the panel; in a line where that would come between somebody and what they have gone on to."""
        app, screen = self._app, self._screen
        try:
            titles = {one.id: one.title for one in screen.session.store.list_conversations()}
        except StoreError:
            titles = {}
        rows = list(cache_rows(report, titles))
        if isinstance(app.screen, CacheScreen):
            app.screen.show_rows(rows)
        elif late and (screen.composer.text or app.screen is not screen):
            screen.tell(cache_line(report))
        else:
            app.push_screen(CacheScreen(rows))

    def _cost(self, system: str) -> None:
        self._ask_cost("With that system prompt" if system else "", system or None)

    def _ask_cost(self, how: str, system: str | None = None) -> None:
        """Ask what the open conversation costs. The answer names it, if another one is open by then."""
        session = self._screen.session
        asked = session.conversation_id
        title = one_line(session.conversation.title, _TITLE_CELLS) if session.conversation else "the new conversation"

        def show(cost: PromptCost) -> None:
            what = "this conversation" if session.conversation_id == asked else f"“{title}”" if asked else title
            line = cost_line(cost, f"{how} {what}".strip())
            self._screen.tell(line[0].upper() + line[1:])

        session.ask_cost(show, system)

    def _prompt(self, _: str) -> None:
        screen = self._screen
        session = screen.session
        if (wait := screen.answers.questions_wait_for()) is not None:
            screen.tell(f"The prompt is shown when {wait}")

        def show(prompt: Inspected) -> None:
            if self._app.screen is screen:
                self._app.push_screen(PromptScreen(prompt))

        session.questions.prompt(
            session.require_open(), show, template=session.template, policy=session.generation.context_policy
        )

    # The rest

    def _show_help(self) -> None:
        self._app.push_screen(HelpScreen(self._screen.keys))

    def palette_actions(self) -> Iterable[PaletteEntry]:
        """Actions that can be done now."""
        now = self._screen.situation()
        for action in ACTIONS:
            if action.in_palette and action.available(now):
                keys = ", ".join(self._screen.keys.keys(action.id))
                told = f"{action.help}  {escape(keys)}" if keys else action.help
                yield PaletteEntry(action.title, told, partial(self._from_palette, action.id))

    def palette_themes(self) -> Iterable[PaletteEntry]:
        """Themes; those of the user are read anew."""
        for name, theme in self._app.reload_themes().items():
            told = escape(theme.description) or ("dark" if theme.dark else "light")
            yield PaletteEntry(f"{THEME_PREFIX}{name}", told, partial(self._app.choose_theme, name))

    def palette_conversations(self, summaries: Sequence[ConversationSummary]) -> Iterable[PaletteEntry]:
        """Conversations, newest first."""
        for summary in summaries:
            title = one_line(summary.title, _TITLE_CELLS)
            messages = "1 message" if summary.message_count == 1 else f"{summary.message_count} messages"
            yield PaletteEntry(title, messages, partial(self._screen.open_conversation, summary.id))

    def _from_palette(self, action_id: str) -> None:
        """What needs an argument is begun in the composer."""
        action = BY_ID[action_id]
        if action.argument_required or action.id in ("system", "set"):
            self._screen.composer.set_text(f"{action.slash} ")
            self._screen.composer.focus()
        else:
            self.run(action_id)

"""What the actions of the registry do in the app, by whichever door they came; most of it is `chat_commands`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual.markup import escape

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.commands.actions_speech import SPEECH_ACTIONS
from exlchat.app.commands.chat import QUIT_WITHIN_SECONDS, TITLE_CELLS, ChatCommands
from exlchat.app.commands.preset import use_preset
from exlchat.app.commands.token import TokenCommands
from exlchat.app.panels.cache import cache_line, cache_rows
from exlchat.ui.tui.palette import THEME_PREFIX
from exlchat.ui.tui.screens.help import HelpScreen
from exlchat.ui.tui.screens.rows import CacheScreen, LogScreen
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from textual.types import IgnoreReturnCallbackType

    from exlchat.app.commands.actions import Place
    from exlchat.chat.model import ConversationSummary
    from exlchat.chat.prompt.inspection import Inspected
    from exlchat.llm.info import CacheReport
    from exlchat.ui.tui.app import ChatApp
    from exlchat.ui.tui.screens.chat import ChatScreen


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """A line of the command palette."""

    title: str
    help: str
    run: IgnoreReturnCallbackType


class Commands(ChatCommands):
    """Carries actions out on one screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._last_ctrl_c = 0.0
        super().__init__(screen)

    def _doors(self) -> Mapping[str, Callable[[str], None]]:
        screen = self._screen
        return {
            "sidebar": lambda _: self._sidebar(),
            "model": self._screen.model_commands.run,
            "models": lambda _: self._screen.model_commands.choose(),
            "undo": screen.message_commands.undo,
            "redo": screen.message_commands.redo,
            "messages": lambda _: self._messages(),
            "find": screen.finding.open,
            "tree": screen.pickers.tree,
            "compare": screen.message_commands.compare,
            "search": screen.pickers.search,
            "edit": partial(screen.message_commands.counted, "edit"),
            "branch": partial(screen.message_commands.counted, "branch"),
            "cut": partial(screen.message_commands.counted, "cut"),
            "alternative": screen.message_commands.numbered_alternative,
            "log": lambda _: self._log(),
            "history": lambda text: screen.pickers.history(text or screen.composer.text),
            "editor": lambda _: self._write_in_editor(),
            "probabilities": TokenCommands(screen, screen.message_commands.probabilities).run,
            "persona": lambda name: self.personas.run(name) if name else screen.pickers.persona(),
            "preset": lambda name: use_preset(screen, name) if name else screen.pickers.preset(),
            "template": lambda name: self._template(name) if name else screen.pickers.template(),
            "settings": screen.settings_commands.run,
            "save-code": screen.message_commands.counted_code,
            "source": screen.message_commands.counted_source,
            "prompt": lambda _: self._prompt(),
            "palette": lambda _: self._app.action_command_palette(),
            "help": lambda _: self._show_help(),
            "copy-or-stop": lambda _: self._copy_or_stop(),
            "quit": lambda _: self._app.leave(),
            "sampling": lambda _: self._sampling(),
            "stats": lambda _: self._stats(),
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
        return super().run(action_id, argument)

    def run_at_cursor(self, action_id: str, key: str) -> bool:
        """Do an action to the message under the cursor of the transcript, whose item has the key."""
        if action_id == "leave-messages":
            self._screen.composer.focus()
        elif action_id in ("undo", "redo", "tree"):
            return self.run(action_id)
        elif action_id == "continue-message":
            return self.run("continue")
        return action_id == "leave-messages" or self.attempt(
            lambda: self._screen.message_commands.at_cursor(action_id, key)
        )

    def _messages(self) -> None:
        if not self._screen.session.branch:
            raise NotPossibleError("there are no messages yet")
        self._screen.transcript.focus()

    def _prompt(self) -> None:
        screen = self._screen
        session = screen.session
        if (wait := self.questions_wait_for()) is not None:
            screen.tell(f"The prompt is shown when {wait}")

        def show(prompt: Inspected) -> None:
            if self._app.screen is screen:
                # No start needs it.
                from exlchat.ui.tui.screens.prompt import PromptScreen

                self._app.push_screen(PromptScreen(prompt))

        session.questions.prompt(
            session.require_open(),
            show,
            template=session.template,
            policy=session.generation.context_policy,
            thinking=session.generation.speech.think,
        )

    def _write_in_editor(self) -> None:
        composer = self._screen.composer
        written = self._app.in_editor(composer.text)
        if written is not None:
            composer.take(written)
        composer.focus()

    # Panels that no start needs

    def _sampling(self) -> None:
        from exlchat.ui.tui.sampling_commands import SamplingCommands

        SamplingCommands(self._screen).open()

    def _stats(self) -> None:
        from exlchat.ui.tui.screens.stats import StatsScreen

        self._app.push_screen(StatsScreen(self._screen))

    # Copying and quitting

    def _copy_text(self, text: str) -> None:
        self._app.copy_to_clipboard(text)

    def _copy_or_stop(self) -> None:
        screen = self._screen
        now = time.monotonic()
        if selected := screen.get_selected_text():
            self._app.copy_to_clipboard(selected)
            screen.clear_selection()
            screen.tell("Copied")
        elif now - self._last_ctrl_c < QUIT_WITHIN_SECONDS:
            self._app.leave()
        else:
            self._last_ctrl_c = now
            stopped = screen.session.stop()
            screen.tell("Stopped; ctrl+c again quits" if stopped else "ctrl+c again quits")

    # Conversations

    def _sidebar(self) -> None:
        screen = self._screen
        if screen.sidebar_shown and screen.sidebar.has_focus:
            screen.show_sidebar(False)
        else:
            self._list_conversations()

    def _list_conversations(self) -> None:
        self._screen.show_sidebar(True)
        self._screen.sidebar.focus()

    def _ask_title(self, conversation_id: str) -> None:
        self._screen.ask_title(conversation_id)

    # Settings

    def _themes(self) -> Iterable[str]:
        return self._app.reload_themes()

    def _theme_now(self) -> str:
        return self._app.theme

    def _choose_theme(self, name: str) -> None:
        self._app.choose_theme(name)

    # The cache

    def _show_cache(self, report: CacheReport, titles: Mapping[str, str], *, late: bool) -> None:
        """In the panel; in a line where that would come between somebody and what they have gone on to."""
        app, screen = self._app, self._screen
        rows = list(cache_rows(report, titles))
        if isinstance(app.screen, CacheScreen):
            app.screen.show_rows(rows)
        elif late and (screen.composer.text or app.screen is not screen):
            screen.tell(cache_line(report))
        else:
            app.push_screen(CacheScreen(rows))

    # The rest

    def _log(self) -> None:
        self._app.push_screen(LogScreen(list(self._screen.services.log.rows())))

    def _show_help(self) -> None:
        screen = self._screen
        place: Place = (
            "message" if screen.transcript.has_focus else "sidebar" if screen.sidebar.has_focus else "everywhere"
        )
        self._app.push_screen(HelpScreen(screen.keys, place))

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
            title = one_line(summary.title, TITLE_CELLS)
            messages = "1 message" if summary.message_count == 1 else f"{summary.message_count} messages"
            yield PaletteEntry(title, messages, partial(self._screen.open_conversation, summary.id))

    def _from_palette(self, action_id: str) -> None:
        """What needs an argument is begun in the composer."""
        action = BY_ID[action_id]
        if action.argument_required or action.id in ("system", "set") or action in SPEECH_ACTIONS:
            self._screen.composer.set_text(f"{action.slash} ")
            self._screen.composer.focus()
        else:
            self.run(action_id)

"""What the actions of the registry do in the app, by whichever door they came; where that needs its screen."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.markup import escape

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import sampling, speaking
from exlchat.app.commands.action import attempt
from exlchat.app.commands.actions import ACTIONS, BY_ID, Commands
from exlchat.app.commands.cache import questions_wait_for
from exlchat.app.commands.conversations import TITLE_CELLS
from exlchat.app.commands.program import QUIT_WITHIN_SECONDS
from exlchat.ui.tui.palette import THEME_PREFIX, Opening, PaletteEntry
from exlchat.ui.tui.pickers import Pickers
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from exlchat.app.commands.action import Place
    from exlchat.chat.model import ConversationSummary
    from exlchat.chat.prompt.inspection import Inspected
    from exlchat.ui.tui.chat_view import ChatView
    from exlchat.ui.tui.finding import ConversationFinder
    from exlchat.ui.tui.message_commands import MessageCommands
    from exlchat.ui.tui.settings_commands import ScreenSettings


class ScreenCommands(Commands):
    def __init__(
        self, screen: ChatView, on_messages: MessageCommands, finding: ConversationFinder, settings: ScreenSettings
    ) -> None:
        self._screen = screen
        self._on_messages = on_messages
        self._finding = finding
        self._settings = settings
        self._last_ctrl_c = 0.0
        super().__init__(screen, self._own_ways())

    def _own_ways(self) -> Mapping[str, Callable[[str], None]]:
        screen = self._screen
        on_messages, pickers = self._on_messages, Pickers(screen, self._finding)
        return {
            "stop": lambda _: self._stop(),
            "tab": screen.tabs.open_new,
            "close-tab": lambda _: screen.tabs.close(),
            "incognito": lambda _: screen.sides.turn(),
            "keep": lambda _: screen.sides.keep(),
            "next-tab": lambda _: screen.tabs.step(1),
            "previous-tab": lambda _: screen.tabs.step(-1),
            "sidebar": lambda _: self._sidebar(),
            "models": lambda _: self._models(),
            "messages": lambda _: self._messages(),
            "find": self._finding.open,
            "tree": pickers.tree,
            "compare": on_messages.compare,
            "search": pickers.search,
            "archived": lambda _: pickers.archived(),
            "edit": partial(on_messages.counted, "edit"),
            "branch": partial(on_messages.counted, "branch"),
            "alternative": on_messages.numbered_alternative,
            "history": lambda text: pickers.history(text or screen.composer.text),
            "persona": lambda name: speaking.persona(screen, name) if name else pickers.persona(),
            "preset": lambda name: sampling.preset(screen, name) if name else pickers.preset(),
            "template": lambda name: speaking.template(screen, name) if name else pickers.template(),
            "save-code": on_messages.counted_code,
            "source": on_messages.counted_source,
            "prompt": lambda _: self._prompt(),
            "palette": lambda _: self._screen.terminal.action_command_palette(),
            "help": lambda _: self._show_help(),
            "copy-or-stop": lambda _: self._copy_or_stop(),
            "sampling": lambda _: self._sampling(),
            "stats": lambda _: self._stats(),
        }

    def run_at_cursor(self, action_id: str, key: str) -> bool:
        """Do an action to the message under the cursor of the transcript, whose item has the key."""
        if action_id == "leave-messages":
            self._finding.forget()
            self._screen.composer.focus()
        elif action_id in ("found-next", "found-before"):
            return attempt(self._screen, lambda: self._finding.go_on(1 if action_id == "found-next" else -1))
        elif action_id in ("undo", "redo", "tree"):
            return self.run(action_id)
        elif action_id == "continue-message":
            return self.run("continue")
        elif self.refused(action_id):
            return False
        return action_id == "leave-messages" or attempt(
            self._screen, lambda: self._on_messages.at_cursor(action_id, key)
        )

    def _stop(self) -> None:
        screen = self._screen
        if not screen.prompt.hide_menu() and not screen.end_edit():
            screen.session.stop()

    def _models(self) -> None:
        screen, loaded = self._screen, self._screen.model.info
        # No start needs it.
        from exlchat.ui.tui.screens.models import ModelsScreen

        picker = ModelsScreen(screen.shelf.listed, Path(loaded.path) if loaded else None)
        self._screen.terminal.push_screen(picker, lambda path: screen.models.change_to(path) if path else None)

    def _messages(self) -> None:
        if not self._screen.session.branch:
            raise NotPossibleError("there are no messages yet")
        self._screen.transcript.focus()

    def _prompt(self) -> None:
        screen = self._screen
        session = screen.session
        if (wait := questions_wait_for(screen)) is not None:
            screen.tell(f"The prompt is shown when {wait}")

        def show(prompt: Inspected) -> None:
            if self._screen.terminal.screen is screen:
                # No start needs it.
                from exlchat.ui.tui.screens.prompt import PromptScreen

                self._screen.terminal.push_screen(PromptScreen(prompt))

        session.questions.prompt(
            session.require_open(),
            show,
            template=session.template,
            policy=session.generation.context_policy,
            thinking=session.generation.speech.think,
        )

    # Panels that no start needs

    def _sampling(self) -> None:
        from exlchat.ui.tui.sampling_commands import SamplingCommands

        SamplingCommands(self._screen, self._settings.take_over).open()

    def _stats(self) -> None:
        from exlchat.ui.tui.screens.stats import StatsScreen

        self._screen.terminal.push_screen(StatsScreen(self._screen))

    # Copying and quitting

    def _copy_or_stop(self) -> None:
        screen = self._screen
        now = time.monotonic()
        if selected := screen.get_selected_text():
            self._screen.terminal.copy_to_clipboard(selected)
            screen.clear_selection()
            screen.tell("Copied")
        elif now - self._last_ctrl_c < QUIT_WITHIN_SECONDS:
            self._screen.terminal.leave()
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
            screen.list_conversations()

    # The rest

    def _show_help(self) -> None:
        screen = self._screen
        place: Place = (
            "message" if screen.transcript.has_focus else "sidebar" if screen.sidebar.has_focus else "everywhere"
        )
        # No start needs it.
        from exlchat.ui.tui.screens.help import HelpScreen

        self._screen.terminal.push_screen(HelpScreen(screen.keys, place, screen.session.lacks))

    def palette_actions(self) -> Iterable[PaletteEntry]:
        now = self._screen.situation()
        for action in ACTIONS:
            if action.in_palette and action.available(now):
                keys = ", ".join(self._screen.keys.keys(action.id))
                told = f"{action.help}  {escape(keys)}" if keys else action.help
                reason = action.lacking(now.lacks)
                run = partial(self._from_palette, action.id)
                yield PaletteEntry(action.title, escape(reason) or told, run, dimmed=bool(reason))

    def palette_themes(self) -> Iterable[PaletteEntry]:
        """Themes; those of the user are read anew."""
        for name, theme in self._screen.terminal.reload_themes().items():
            told = escape(theme.description) or ("dark" if theme.dark else "light")
            yield PaletteEntry(f"{THEME_PREFIX}{name}", told, partial(self._screen.terminal.choose_theme, name))

    def palette_conversations(self, summaries: Sequence[ConversationSummary]) -> Iterable[PaletteEntry]:
        """Conversations, newest first."""
        for summary in summaries:
            title = one_line(summary.title, TITLE_CELLS)
            messages = "1 message" if summary.message_count == 1 else f"{summary.message_count} messages"
            beside = partial(attempt, self._screen, partial(self._screen.tabs.show_beside, summary.id))
            opening = Opening(partial(self._screen.open_conversation, summary.id), beside)
            yield PaletteEntry(title, f"{messages} · ctrl+t opens it in a tab", opening)

    def _from_palette(self, action_id: str) -> None:
        """What needs an argument is begun in the composer."""
        action = BY_ID[action_id]
        if self.refused(action_id):
            return
        if action.argument_required or action.is_typed:
            self._screen.composer.set_text(f"{action.slash} ")
            self._screen.composer.focus()
        else:
            self.run(action_id)

"""Conversations that are kept nowhere: on a screen of their own, whose every part lies in memory alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from exlchat.app.chat.drafts import Drafts
from exlchat.app.chat.open_tabs import OpenTabs
from exlchat.app.chat.session import ChatSession, NotPossibleError
from exlchat.app.commands import conversations
from exlchat.app.composer.history import TypedHistory
from exlchat.app.log import UnwrittenLog
from exlchat.app.runtime.own_jobs import OwnJobs
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.screens.chat import ChatScreen, EngineReport

if TYPE_CHECKING:
    from textual.screen import Screen

    from exlchat.app.runtime.engine_jobs import EngineJobs
    from exlchat.app.runtime.jobs import Report
    from exlchat.app.services import Services
    from exlchat.ui.tui.terminal_app import TerminalApp

KEPT: Final = "kept"
_INCOGNITO: Final = "incognito"
"""Modes of the app, each with its own stack of screens: those of the other one go on unseen."""
_BEGUN: Final = "Nothing that is said here is kept. /incognito goes back, /keep keeps a conversation after all"


class Incognito:
    """The `Sides` of the app. Belongs to it and runs on its thread, but for `owns`."""

    def __init__(self, app: TerminalApp, kept: ChatScreen, engine_jobs: EngineJobs) -> None:
        self._app = app
        self._kept = kept
        self._thread = engine_jobs
        self._jobs = OwnJobs(engine_jobs)
        self.screen: ChatScreen | None = None
        """Where they are, once there are any."""
        self._arrived = False
        """Whether that is told of models."""

    # What the engine's jobs report

    def owns(self, report: Report) -> bool:
        """Whether it was asked there. Is called on the threads of jobs."""
        return self._jobs.owns(report)

    def take(self, report: Report) -> None:
        """Take what was asked there; of a screen that is gone by now nobody wants to know."""
        if self.screen is not None:
            self.screen.post_message(EngineReport(report))

    def heard(self, report: Report) -> None:
        """The other screen has heard of the model, which is that of both."""
        if self.screen is not None and self._arrived:
            self.screen.post_message(EngineReport(report))

    def arrived(self, screen: Screen[None]) -> None:
        if self.screen is not None and screen is self.screen:
            self.screen.share_model(self._kept)
            self._arrived = True

    # What somebody does

    @property
    def is_shown(self) -> bool:
        return self._app.current_mode == _INCOGNITO

    @property
    def is_there(self) -> bool:
        return self.screen is not None

    @property
    def is_answering(self) -> bool:
        """Whether an answer grows on the side that is not shown."""
        hidden = self._kept if self.is_shown else self.screen
        return hidden is not None and hidden.session.being_written is not None

    def turn(self) -> None:
        """Go to them, or from them to the conversations that are kept.

        Raises:
            NotPossibleError: nothing of this start is kept.
        """
        if not self._kept.services.kept:
            raise NotPossibleError(f"{conversations.NOTHING_KEPT} already")
        if self.is_shown:
            self._show(KEPT, self._kept)
        elif self.screen is not None:
            self._show(_INCOGNITO, self.screen)
        else:
            self._begin()

    def keep(self) -> None:
        """Put the open one among those that are kept, and go on with it there.

        Raises:
            NotPossibleError: it is kept, is new, or is being answered.
            StoreError: it cannot be written; it stays where it is.
        """
        screen = self.screen
        if screen is None or not self.is_shown:
            conversations.keep(self._kept, "")
            return
        session = screen.session
        session.require_quiet()
        ident = session.require_open()
        screen.unsent.keep()
        kept_as = self._kept.session.store.write_tree(session.store.read_tree(ident))
        session.delete_all([ident])
        if session.store.list_conversations():
            screen.show_conversation()
            self._show(KEPT, self._kept)
        else:
            self._forget()
        self._kept.open_conversation(kept_as)
        self._kept.tell("This conversation is kept from here on, with all that was said in it")

    def close(self) -> None:
        """Forget all of them; whoever has said something is asked first."""
        many = self._said()
        if not many:
            self._forget()
            return
        # No start needs it.
        from exlchat.ui.tui.screens.question import QuestionScreen

        lost = f"Lose {_counted(many)}; nothing brings {'it' if many == 1 else 'them'} back"
        asked = QuestionScreen("Forget what was said incognito?", no="Go on", yes=lost)
        self._app.push_screen(asked, lambda yes: self._forget() if yes else None)

    def loss(self) -> str | None:
        """What quitting would lose, in a line."""
        many = self._said()
        return f"{_counted(many)} said incognito will be lost; quit again to lose them" if many else None

    def _said(self) -> int:
        screen = self.screen
        return 0 if screen is None else sum(one.message_count for one in screen.session.store.list_conversations())

    def _begin(self) -> None:
        kept = self._kept
        services = unkept(kept)
        session = ChatSession(
            services.store,
            self._jobs,
            defaults=services.defaults,
            persona=services.persona,
            titles=services.titles,
        )
        screen = ChatScreen(session, services, self._thread)
        screen.sides = self
        kept.leave_conversation()
        self.screen = screen
        self._app.add_mode(_INCOGNITO, lambda: screen)
        self._app.switch_mode(_INCOGNITO)
        screen.tell(_BEGUN)

    def _show(self, mode: str, screen: ChatScreen) -> None:
        before = self._kept if mode == _INCOGNITO else self.screen
        if before is not None:
            before.leave_conversation()
        self._app.switch_mode(mode)
        screen.settings_commands.catch_up()
        screen.refresh_around()
        screen.composer.focus()

    def _forget(self) -> None:
        screen, self.screen, self._arrived = self.screen, None, False
        if screen is None:
            return
        session = screen.session
        session.delete_all([one.id for one in session.store.list_conversations()])
        self._kept.models.part(session)
        self._show(KEPT, self._kept)
        self._app.remove_mode(_INCOGNITO)


def unkept(screen: ChatScreen) -> Services:
    """What a screen beside another one is made of: whatever would lie on a disk lies in memory."""
    store = ConversationStore(None)
    return replace(
        screen.services,
        store=store,
        kept=False,
        defaults=screen.session.defaults,
        titles=screen.session.titles,
        theme=screen.theme_in_use,
        keys=screen.keys,
        drafts=Drafts(store, None),
        continue_last=False,
        notices=(),
        first_message=None,
        log=UnwrittenLog(),
        typed=TypedHistory(None),
        tabs=OpenTabs(None),
    )


def _counted(many: int) -> str:
    return "1 message" if many == 1 else f"{many} messages"

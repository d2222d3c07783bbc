"""A stage for the real app: folders of its own with a few files, the guide, answers that are written beforehand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from datetime import time as time_of_day
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from textual.widgets import Input, TextArea

from exlchat import paths
from exlchat.app.chat.drafts import Drafts
from exlchat.app.options import AppOptions
from exlchat.app.panels.figures import GrowingFigures, StatusFacts
from exlchat.app.services import Services, open_services
from exlchat.chat.store.conversations import ConversationStore
from exlchat.config.layers import typed
from exlchat.ui.tui.app import ChatApp
from tools.pictures.cells import Row, rows_of
from tools.pictures.played import PlayedEngine
from tools.pictures.texts import CONVERSATIONS, FILES, Talk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from textual.pilot import Pilot

    from exlchat.llm.info import LoadProgress
    from exlchat.llm.port import Engine

_PATIENCE_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_SETTLED_LOOKS = 3
_STEP_SECONDS = 40.0
"""Between two things that the conversations say happened one after the other."""
_EVENING = time_of_day(20, 0)
RATE = 90.0
"""Tokens a second at which answers come, as it is seen and told."""


@dataclass
class Stage:
    """The app with all that is needed to play on it."""

    app: ChatApp
    pilot: Pilot[int]
    engine: PlayedEngine

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait until something is so.

        Raises:
            TimeoutError: it never was.
        """
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not so():
                await self.pilot.pause(_LOOK_SECONDS)
        await self.pilot.pause()

    async def settled(self) -> tuple[Row, ...]:
        """The screen, once it has stopped changing."""
        same = 0
        rows: tuple[Row, ...] = ()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while same < _SETTLED_LOOKS:
                await self.pilot.pause(_LOOK_SECONDS)
                self._still_cursors()
                before, rows = rows, rows_of(self.app)
                same = same + 1 if rows == before else 0
        return rows

    async def ask(self, question: str, *answers: str) -> None:
        """Send a message at once and wait for the answer: the one that is given, else the guide's own."""
        self.engine.say(*answers)
        self.app.chat_screen.send(question)
        await self.answered()

    async def answered(self) -> None:
        """Wait for the answer that is on its way."""
        await self.until(lambda: not self.app.session.busy)

    async def press(self, *keys: str) -> None:
        """Press keys, and let each be done before the next."""
        for key in keys:
            await self.pilot.press(key)
            await self.settled()

    async def type(self, text: str) -> None:
        """Type a text."""
        await self.pilot.press(*(" " if letter == " " else letter for letter in text))
        await self.settled()

    def open(self, title: str) -> None:
        """Open the conversation of that title."""
        summaries = self.app.session.store.list_conversations()
        self.app.chat_screen.open_conversation(next(one.id for one in summaries if one.title == title))

    def _still_cursors(self) -> None:
        for field in self.app.screen.query("Input, TextArea").results():
            if isinstance(field, Input | TextArea):
                field.cursor_blink = False


_as_made = GrowingFigures.news


def _as_seen(growing: GrowingFigures, before: StatusFacts, now: float) -> StatusFacts | None:
    """The rate that is seen, not that at which the pictures are made; each time, not a few times a second of that."""
    growing._told_at = 0.0
    facts = _as_made(growing, before, now)
    return facts if facts is None or facts.rate is None else replace(facts, rate=RATE)


@asynccontextmanager
async def stage(
    size: tuple[int, int],
    *,
    theme: str = "exlchat-dark",
    sidebar: bool = True,
    conversations: Sequence[Talk] = CONVERSATIONS,
) -> AsyncIterator[Stage]:
    """The app, with the guide loaded and these conversations from before."""
    with folders():
        services = _services(theme, sidebar)
        for title, branch in conversations:
            conversation = services.store.create_conversation(title)
            for question, answer in branch:
                services.store.add_message(conversation.id, "user", question)
                services.store.add_message(conversation.id, "assistant", answer)
        engines: list[PlayedEngine] = []

        def load(on_progress: Callable[[LoadProgress], None]) -> Engine:
            # It imports torch, which the first screen does not wait for.
            from exlchat.engine import LocalEngine

            guide = services.load_engine(on_progress)
            assert isinstance(guide, LocalEngine)
            engines.append(PlayedEngine(guide, RATE))
            return engines[0]

        app = ChatApp(replace(services, load_engine=load))
        app.animation_level = "none"
        with patch.object(GrowingFigures, "news", _as_seen):
            async with app.run_test(size=size, notifications=True) as pilot:
                await _loaded(app, pilot)
                yield Stage(app, pilot, engines[0])
        services.close()


async def _loaded(app: ChatApp, pilot: Pilot[int]) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while app.chat_screen.model.info is None:
            if app.chat_screen.model.failure is not None:
                raise RuntimeError(app.chat_screen.model.failure)
            await pilot.pause(_LOOK_SECONDS)


@contextlib.contextmanager
def folders() -> Iterator[None]:
    """Folders of the user and a working folder that hold nothing but what is made here."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as root:
        work = Path(root) / "work"
        for name, text in FILES.items():
            file = work / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        os.environ[paths.HOME_VARIABLE] = str(Path(root) / "home")
        os.environ["TZ"] = "UTC"
        time.tzset()
        os.chdir(work)
        try:
            yield
        finally:
            os.chdir(before)


def _services(theme: str, sidebar: bool) -> Services:
    """Those of a start; the conversations have times of this evening, the same at each run."""
    folders = paths.folders()
    paths.atomic_write(folders.settings_file, f'theme = "{theme}"\ntemperature = 0.5\n')
    services = open_services(AppOptions(paths.bundled_model(), layers=(typed(seed=7),)))
    services.store.close()
    began = datetime.combine(date.today(), _EVENING).timestamp()
    moments = itertools.count(began, _STEP_SECONDS)
    store = ConversationStore(folders.conversations, clock=lambda: next(moments))
    drafts = Drafts(store, folders.state / "drafts.json")
    return replace(services, store=store, drafts=drafts, sidebar=sidebar)

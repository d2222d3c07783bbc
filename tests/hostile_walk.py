"""The real app on a real terminal, through all that shows a stranger's text: `python -m tests.hostile_walk HOME`.

What is wrong with the layout, or was never shown, goes to `problems.json` in HOME.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from textual.pilot import Pilot

from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.hostile import HOSTILE, NAME
from tests.ui.app_harness import app, idle, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

LISTS = ("tree", "search where", "persona", "preset", "template", "models", "prompt", "cache", "compare")
SAYING = (
    "model",
    "theme",
    "theme stranger",
    "stats",
    f"rename {NAME}",
    f"model {NAME}",
    "persona stranger",
    "group stranger narrator",
)


class Walk:
    """Looks at the screen after every step."""

    def __init__(self, chat: ChatApp) -> None:
        self.chat = chat
        self.seen: list[str] = []
        self.problems: list[str] = []

    async def all(self, pilot: Pilot[int]) -> None:
        """Everything, and then it quits, whatever happens."""
        try:
            await self.steps(pilot)
        except BaseException as error:
            place = f"after {self.seen[-1:]}; said: {told(self.chat)}"
            self.problems.append(f"{type(error).__name__}: {error}; {place}")
        self.chat.exit(0)

    async def steps(self, pilot: Pilot[int]) -> None:
        """One after the other."""
        screen, session = self.chat.chat_screen, self.chat.session
        await until(pilot, lambda: screen.model.info is not None)
        session.draw_by(session.generation.with_value("temperature", "0.7"))
        self.look("the transcript")
        for key in ("ctrl+home", "pagedown", "pagedown", "ctrl+end"):
            await pilot.press(key)
            self.look(f"the transcript, {key}")
        for command in LISTS:
            screen.composer.set_text(f"/{command}")
            await self.opened(pilot, command, "enter")
        await self.opened(pilot, "palette", "ctrl+p", typed="ostile")
        screen.commands.run("find", "where")
        await pilot.press("enter", "escape")
        for command in SAYING:
            screen.composer.set_text(f"/{command}")
            await pilot.press("enter")
            await pilot.pause()
            self.look(command)
        screen.tell(HOSTILE)
        screen.new_conversation()
        screen.commands.run("persona", "stranger")
        screen.send(HOSTILE)
        await idle(pilot)
        self.look("an answer")
        await pilot.press("ctrl+b")
        await pilot.pause()
        self.look("the sidebar")

    async def opened(self, pilot: Pilot[int], where: str, key: str, typed: str = "") -> None:
        """Another screen, gone through a little and left."""
        self.seen.append(f"{where} is asked for")
        await pilot.press(key)
        await until(pilot, lambda: self.chat.screen is not self.chat.chat_screen)
        await pilot.press(*typed, "down", "down")
        # The palette is filled by a worker.
        await until(pilot, lambda: self.hostile_is_shown)
        self.look(where)
        await pilot.press("escape")
        await until(pilot, lambda: self.chat.screen is self.chat.chat_screen)

    @property
    def hostile_is_shown(self) -> bool:
        return "ostile" in shown(self.chat)

    def look(self, where: str) -> None:
        """Every row has its width, and something hostile is there to be shown."""
        self.seen.append(where)
        screen = self.chat.screen
        if not self.hostile_is_shown:
            self.problems.append(f"{where}: nothing hostile is shown, so nothing is tried")
        for number, strip in enumerate(screen._compositor.render_strips()[: screen.size.height]):
            if strip.cell_length != screen.size.width:
                self.problems.append(f"{where}: row {number} is {strip.cell_length} cells wide")


def main(home: Path) -> None:
    """On the terminal of this process."""
    engine = ScriptedEngine(*[HOSTILE] * 8, name=f"m {HOSTILE}", max_seq_len=100_000)
    store = ConversationStore(home / "data" / "conversations.db")
    chat = app(home, engine, store=store, notices=(HOSTILE,), continue_last=True)
    walk = Walk(chat)
    chat.run(auto_pilot=walk.all)  # type: ignore[arg-type]
    store.close()
    (home / "problems.json").write_text(json.dumps(walk.problems))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""An app with a transcript, and what a test may want to see of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from textual.app import App, ComposeResult
from textual.theme import Theme

from exlchat.ui.tui.widgets.transcript import Role, Transcript, TranscriptItem
from tests.ui.app_harness import until

if TYPE_CHECKING:
    from textual.pilot import Pilot

LIGHT = Theme("paper", primary="#aa0000", background="#ffffff", foreground="#111111", surface="#eeeeee", dark=False)


class TranscriptApp(App[None]):
    """Holds one transcript and remembers the counts of new lines it reported."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[int] = []

    def compose(self) -> ComposeResult:
        yield Transcript(id="transcript")

    def on_mount(self) -> None:
        self.register_theme(LIGHT)
        self.transcript.focus()

    @property
    def transcript(self) -> Transcript:
        return self.query_one("#transcript", Transcript)

    def on_transcript_new_below(self, message: Transcript.NewBelow) -> None:
        self.reported.append(message.lines)


def screen_lines(transcript: Transcript) -> list[str]:
    """What is on the screen, without the marks of the roles and the blanks at line ends."""
    return [transcript.render_line(y).text[2:].rstrip() for y in range(transcript.window.height)]


async def painted(pilot: Pilot[None]) -> None:
    """Wait until what has arrived is on the screen, however slow the machine is."""
    await pilot.pause()
    transcripts = pilot.app.query(Transcript)
    await until(pilot, lambda: all(transcript._paint_timer is None for transcript in transcripts))


def mixed_messages(count: int, seed: int = 1) -> list[TranscriptItem]:
    """Messages of many lengths and kinds. Every line can be told from every other."""
    chance = random.Random(seed)
    items = []
    for number in range(count):
        kind = chance.choice(["short", "long", "code", "list", "table"])
        if kind == "short":
            text = f"short message {number}"
        elif kind == "long":
            text = "\n\n".join(f"{number}.{part} " + "word " * chance.randint(1, 80) for part in range(3))
        elif kind == "code":
            text = "```python\n" + "".join(f"x{number}_{line} = 1\n" for line in range(chance.randint(1, 25))) + "```"
        elif kind == "list":
            text = "\n".join(f"- item {number}.{line}" for line in range(chance.randint(1, 20)))
        else:
            text = "| a | b |\n|---|---|\n" + "".join(f"| {number} | {line} |\n" for line in range(5))
        role: Role = "assistant" if number % 2 else "user"
        items.append(TranscriptItem(f"m{number}", role, text, footer=f"footer {number}" if number % 3 == 0 else ""))
    return items

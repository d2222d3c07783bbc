"""Plays on a stage and takes a frame whenever the screen has changed, in a time of its own.

That time goes on by what the script says, not by how long this machine takes: a slow one records the same film.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.pictures.film import Frame
from tools.pictures.stage import RATE

if TYPE_CHECKING:
    from tools.pictures.cells import Row
    from tools.pictures.stage import Stage

FRAME_SECONDS = 0.1


class Recorder:
    """The film so far. `now` is its length in seconds, `caption` what is being done from now on."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.caption = ""
        self._frames_long = 0

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return round(self._frames_long * FRAME_SECONDS, 3)

    def show(self, rows: tuple[Row, ...], seconds: float) -> None:
        """Show a screen for a while, which is rounded to whole frames."""
        last = self.frames[-1] if self.frames else None
        if last is None or (last.rows, last.caption) != (rows, self.caption):
            self.frames.append(Frame(self.now, rows, self.caption))
        self._frames_long += round(seconds / FRAME_SECONDS)

    async def wait(self, stage: Stage, seconds: float) -> None:
        """Look at the screen for a while."""
        self.show(await stage.settled(), seconds)

    async def press(self, stage: Stage, *keys: str, each: float = FRAME_SECONDS) -> None:
        """Press keys; what each does is looked at for a while."""
        for key in keys:
            await stage.pilot.press(key)
            await self.wait(stage, each)

    async def type(self, stage: Stage, text: str) -> None:
        """Type a text, ten letters a second."""
        for letter in text:
            await self.press(stage, "space" if letter == " " else letter)

    async def stream(self, stage: Stage, key: str, *answers: str) -> None:
        """Press the key that asks for answers, and watch them come at the stage's rate."""
        stage.engine.say(*answers)
        stage.engine.hold()
        await self.press(stage, key)
        await stage.until(lambda: stage.app.session.busy)
        while stage.app.session.busy:
            stage.engine.step(round(RATE * FRAME_SECONDS))
            await self.wait(stage, FRAME_SECONDS)
        stage.engine.release()

"""Record a tour of about a minute from the real app: `python -m tools.tour` writes `docs/tour.svg`.

The guide answers the first question; the other answers are written in `pictures/texts.py`, for it knows nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tools.pictures import texts
from tools.pictures.cells import Span, plain_row
from tools.pictures.film import film
from tools.pictures.recorder import FRAME_SECONDS, Recorder
from tools.pictures.stage import Stage, stage

TOUR = Path(__file__).parents[1] / "docs" / "tour.svg"
SIZE = (100, 28)
TELLING_SECONDS = 17.0
"""A moment with an answer on the screen, for those who want nothing to move."""
SHELL = (Span("", "#d9d6d0", "#12151b"),)


async def record() -> Recorder:
    """The whole tour."""
    film_so_far = Recorder()
    shell(film_so_far, "exlchat: chat in the terminal, with models on your own machine", "exlchat")
    earlier = [one for one in texts.CONVERSATIONS if one[1][0][0] != texts.SORTING]
    async with stage(SIZE, conversations=earlier) as there:
        for part in (asking, sorting, completing, naming_a_file, editing, comparing, looking, choosing_colours):
            await part(film_so_far, there)
    shell(film_so_far, "Ctrl+Q quits. Every word is on disk: exlchat --continue goes on here", "")
    return film_so_far


def shell(to: Recorder, caption: str, typed: str) -> None:
    """The terminal before and after the program."""
    to.caption = caption
    blank = plain_row("", SHELL, SIZE[0])
    for length in range(len(typed) + 1):
        line = plain_row(f"$ {typed[:length]}▏", SHELL, SIZE[0])
        to.show((line, *[blank] * (SIZE[1] - 1)), FRAME_SECONDS)
    to.show(to.frames[-1].rows, 0.6 if typed else 2.0)


async def asking(to: Recorder, there: Stage) -> None:
    """The welcome, and an answer of the guide."""
    to.caption = "It is ready at once: a small guide comes along, which runs on the CPU"
    await to.wait(there, 2.4)
    to.caption = "The guide knows exlchat and nothing else; any other model is one command away"
    await to.type(there, "How do I load a model?")
    await to.stream(there, "enter")
    await to.wait(there, 2.0)


async def sorting(to: Recorder, there: Stage) -> None:
    """An answer with everything in it."""
    to.caption = "Answers are drawn while they come: code in colours, tables, links, quotes"
    await to.press(there, "ctrl+n", each=0.4)
    await to.type(there, texts.SORTING)
    await to.stream(there, "enter", texts.SORTED)
    await to.wait(there, 1.6)


async def completing(to: Recorder, there: Stage) -> None:
    """Slash commands."""
    to.caption = "/ lists the commands that can be given now, Tab completes"
    await to.press(there, "/", each=1.2)
    await to.press(there, "s", "t", each=0.4)
    await to.press(there, "tab", each=0.4)
    await to.press(there, "enter", each=1.8)
    await to.press(there, "escape", each=0.2)


async def naming_a_file(to: Recorder, there: Stage) -> None:
    """A file goes with a message."""
    to.caption = "@ takes a file along, and says how many tokens it has"
    await to.type(there, "What does ")
    await to.press(there, "@", each=1.4)
    await to.type(there, "wo")
    await to.press(there, "tab", each=0.3)
    await to.type(there, "do?")
    await to.wait(there, 0.9)
    await to.stream(there, "enter", texts.ABOUT_THE_FILE)
    await to.wait(there, 1.2)


async def editing(to: Recorder, there: Stage) -> None:
    """A changed question, three answers to it, and the tree of all."""
    to.caption = "Ctrl+Up goes to the messages; E changes one, and keeps the old one beside it"
    await to.press(there, "ctrl+up", each=0.6)
    await to.press(there, "up", "up", "up", each=0.3)
    await to.press(there, "e", each=0.8)
    await to.press(there, *["backspace"] * len("length?"), each=FRAME_SECONDS)
    await to.type(there, "last letter?")
    first, second, third = texts.BY_LAST_LETTER
    await to.stream(there, "enter", first)
    await to.wait(there, 0.6)
    to.caption = "R answers again, ← and → go through the alternatives: nothing is written over"
    await to.press(there, "ctrl+up", each=0.3)
    await to.stream(there, "r", second)
    await to.press(there, "end", each=0.5)
    await to.stream(there, "r", third)
    await to.press(there, "end", each=0.5)
    await to.press(there, "left", each=0.8)
    to.caption = "T shows every branch of the conversation"
    await to.press(there, "t", each=1.0)
    await to.press(there, "up", "up", each=0.6)
    await to.press(there, "escape", each=0.3)
    await to.press(there, "escape")


async def comparing(to: Recorder, there: Stage) -> None:
    """Two answers at once, side by side."""
    to.caption = "/compare has several answers side by side; one is kept in view"
    await to.type(there, "/compare 2")
    await to.stream(there, "enter", texts.COMPARED[0])
    await to.wait(there, 1.0)
    await to.press(there, "right", each=0.6)
    await to.press(there, "enter", each=0.6)


async def looking(to: Recorder, there: Stage) -> None:
    """Personas, the prompt, everything that was said."""
    to.caption = "F7: who speaks, with what each says to the model"
    await to.press(there, "f7", each=0.8)
    await to.press(there, "down", "down", "down", each=0.6)
    await to.press(there, "escape", each=0.2)
    to.caption = "F4: the exact prompt, token by token; shaded is what the cache holds"
    await to.press(there, "f4", each=2.4)
    await to.press(there, "escape", each=0.2)
    to.caption = "F3: search everything that was ever said, and go there"
    await to.press(there, "f3", each=0.4)
    await to.type(there, "frost")
    await to.wait(there, 0.8)
    await to.press(there, "down", each=0.8)
    await to.press(there, "enter", each=1.2)


async def choosing_colours(to: Recorder, there: Stage) -> None:
    """Themes, each shown while it is looked at."""
    to.caption = "Ctrl+P finds commands, conversations and themes, and shows those at once"
    await to.press(there, "ctrl+p", each=0.5)
    await to.type(there, "theme: ")
    await to.press(there, *["down"] * 9, each=0.4)
    await to.press(there, "enter", each=1.2)


def main() -> int:
    """Record it and write it."""
    recorded = asyncio.run(record())
    drawn = film(recorded.frames, recorded.now, title="exlchat", still_at=TELLING_SECONDS)
    TOUR.write_text(drawn, encoding="utf-8")
    sys.stdout.write(f"{TOUR.name}: {recorded.now:g} s, {len(recorded.frames)} frames, {len(drawn) // 1024:,} KiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

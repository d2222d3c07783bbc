"""The pictures of the docs, a function each that brings the app there; `docs/picture-NAME.svg` is what it shows then.

One more is `@picture("name", "Title of the window")` over an `async def` that takes a `Stage`: it presses keys, types,
asks, opens screens. The picture is taken once the screen has stopped changing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.library.listing import Entry
from exlchat.config.themes import load_themes
from exlchat.llm.info import FitReport, ModelCard
from tools.pictures import texts
from tools.pictures.line_mode import line_mode
from tools.pictures.stage import stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tools.pictures.cells import Row
    from tools.pictures.stage import Stage

SIZE = (88, 28)
_README_SIZE = (120, 30)
_LINE_SIZE = (88, 16)
_WITH_SIDEBAR = 120
"""Columns from which on a review shows the list of conversations."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One file.

    Args:
        file: its name in `docs`, without the ending.
        title: what stands in the bar of its window.
        rows: makes what is to be seen.
        at: the same in another size and theme; `None` where it has neither.
    """

    file: str
    title: str
    rows: Callable[[], Coroutine[None, None, tuple[Row, ...]]]
    at: Callable[[tuple[int, int], str], Coroutine[None, None, tuple[Row, ...]]] | None = None


PICTURES: dict[str, Picture] = {}
"""By the name that `python -m tools.screenshot NAME` takes."""


def picture(
    name: str,
    title: str,
    *,
    file: str = "",
    size: tuple[int, int] = SIZE,
    theme: str = "exlchat-dark",
    sidebar: bool = False,
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Stage], Awaitable[None]]]:
    """Have a scene taken as a picture, `picture-NAME` if it is not to be another `file`."""

    def take(scene: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
        async def at(size: tuple[int, int], theme: str) -> tuple[Row, ...]:
            async with stage(size, theme=theme, sidebar=sidebar or size[0] >= _WITH_SIDEBAR) as there:
                await scene(there)
                return await there.settled()

        async def rows() -> tuple[Row, ...]:
            async with stage(size, theme=theme, sidebar=sidebar) as there:
                await scene(there)
                return await there.settled()

        PICTURES[name] = Picture(file or f"picture-{name}", title, rows, at)
        return scene

    return take


@picture("writing", "A file in a message: @")
async def writing(there: Stage) -> None:
    """The menu of files, with their tokens."""
    there.open("Words by length")
    await there.type("What do @words.py and @no")


@picture("message", "On a message: ctrl+up")
async def message(there: Stage) -> None:
    """The cursor on the second of three answers."""
    await _three_answers(there)
    await there.press("ctrl+up", "left")


@picture("tree", "Branches: /tree")
async def tree(there: Stage) -> None:
    """Branches of a conversation."""
    await _three_answers(there)
    there.app.session.store.set_tip(there.app.session.require_open(), there.app.session.branch[1].id)
    there.app.session.reload()
    await there.ask("And by their last letter?", texts.BY_LAST_LETTER[0])
    await there.press("ctrl+up", "t", "up", "up")


@picture("compare", "Compare: /compare 2")
async def compare(there: Stage) -> None:
    """Two answers side by side."""
    await there.ask("Is a lambda or itemgetter the better key?", texts.COMPARED[0])
    there.engine.say(texts.COMPARED[1])
    await there.type("/compare 2")
    await there.press("enter")
    await there.answered()
    await there.press("right")


@picture("find", "Find in the conversation: ctrl+f")
async def find(there: Stage) -> None:
    """A text in this conversation."""
    there.open("Frost on the window")
    await there.press("ctrl+f")
    await there.type("frost")
    await there.press("enter")


@picture("search", "Search everything: f3")
async def search(there: Stage) -> None:
    """All conversations looked through."""
    there.open("Words by length")
    await there.press("f3")
    await there.type("frost")
    await there.press("down", "down")


@picture("personas", "Personas: f7")
async def personas(there: Stage) -> None:
    """Who can speak, with what each says to the model."""
    await there.press("f7", "down", "down")


@picture("group", "A group chat: /group brainstormer editor")
async def group(there: Stage) -> None:
    """Two personas, of whom one answers the other."""
    await there.type("/group brainstormer editor")
    await there.press("enter")
    asked, *answers = texts.HARBOUR_NAMES
    await there.ask(asked, answers[0])
    there.engine.say(answers[1])
    await there.type("/speak Editor")
    await there.press("enter")
    await there.answered()
    there.app.clear_notifications()


@picture("prompt", "Prompt inspector: f4")
async def prompt(there: Stage) -> None:
    """The prompt, token by token."""
    await there.ask("Which is the shortest word for a bird?", "*Tit*, or *auk*, with three letters each.")
    await there.ask("And the longest?", "`sandpiper` here, with nine letters.")
    await there.press("f4")


@picture("sampling", "Sampling: f6")
async def sampling(there: Stage) -> None:
    """Every value of the next answers, with what it does and where it is from."""
    await there.press("f6", "down", "down", "down", "left")


@picture("statistics", "Statistics: f9")
async def statistics(there: Stage) -> None:
    """Figures of a conversation, and of what the cache holds."""
    for answer in texts.BY_LAST_LETTER:
        await there.ask("How do I sort words by their last letter?", answer)
    await there.press("f9")


@picture("probabilities", "How likely each token was: i on a message")
async def probabilities(there: Stage) -> None:
    """An answer of the guide, token by token."""
    await there.ask("How do I stop an answer?")
    await there.press("ctrl+up", "i")
    await there.settled()
    await there.press("n")


@picture("models", "Models: f5")
async def models(there: Stage) -> None:
    """A library of three."""
    from exlchat.ui.tui.screens.models import ModelsScreen

    await there.app.push_screen(ModelsScreen(lambda: _LIBRARY, Path("/models/tern")))


@picture("settings", "Settings: f2")
async def settings(there: Stage) -> None:
    """All settings."""
    await there.press("f2", "down", "down")


@picture("help", "Help: f1")
async def help_screen(there: Stage) -> None:
    """Keys and commands."""
    await there.press("f1")


PICTURES["line"] = Picture(
    "picture-line", "Line mode: exlchat --line", lambda: line_mode(_LINE_SIZE, "How do I load a model?")
)


for _theme in ("exlchat-dark", "exlchat-light"):

    @picture(
        _theme.replace("exlchat", "screenshot"),
        "exlchat",
        file=_theme.replace("exlchat", "screenshot"),
        size=_README_SIZE,
        theme=_theme,
        sidebar=True,
    )
    async def guide(there: Stage) -> None:
        """Answers of the guide, for the README."""
        for question in ("How do I load a model?", "What is EXL2?", "How do I stop an answer?"):
            await there.ask(question)


@picture("narrow", "80 columns", size=(80, 24), theme="rime")
async def narrow(there: Stage) -> None:
    """A small terminal."""
    there.open("Words by length")


@picture("wide", "200 columns", size=(200, 40), sidebar=True)
async def wide(there: Stage) -> None:
    """Text, composer and status begin at one column, however wide the terminal is."""
    there.open("Words by length")


for _theme in load_themes(paths.shipped_themes(), paths.shipped_themes())[0]:

    @picture(f"theme-{_theme}", f"/theme {_theme}", file=f"theme-{_theme}", theme=_theme)
    async def theme(there: Stage) -> None:
        """The colours of everything in an answer."""
        there.open("Words by length")


async def _three_answers(there: Stage) -> None:
    first, second, third = texts.BY_LAST_LETTER
    await there.ask("How do I sort words by their last letter?", first)
    for answer in (second, third):
        there.engine.say(answer)
        await there.press("ctrl+t")
        await there.answered()


_LIBRARY = (
    Entry(
        "harbour/Tern-8B@4.0bpw",
        ModelCard(
            "/models/tern",
            4 * 2**30,
            "LlamaForCausalLM",
            "EXL2 4.0 bpw",
            8 * 10**9,
            4.1,
            8192,
            FitReport(1, 8192, None),
        ),
    ),
    Entry(
        "harbour/Gull-70B-GPTQ",
        ModelCard(
            "/models/gull",
            38 * 2**30,
            "LlamaForCausalLM",
            "GPTQ 4-bit g128",
            70 * 10**9,
            4.2,
            8192,
            FitReport(1, 0, "needs 41.2 GiB, 22.9 GiB are free"),
        ),
    ),
    Entry("harbour/Wren-1B", ModelCard("/models/wren", 3 * 2**20, problem="config.json: not valid JSON")),
)

"""What the screens look like, against pictures that somebody has looked at: `pytest --snapshot-update` takes new ones.

Nothing in them moves: no cursor blinks, answers come from a script, and figures from it too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from exlchat.app.library.listing import Entry
from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.info import FitReport, ModelCard
from exlchat.ui.tui.screens.compare import CompareScreen
from exlchat.ui.tui.screens.line import InputScreen
from exlchat.ui.tui.screens.link import LinkScreen
from exlchat.ui.tui.screens.models import ModelsScreen
from exlchat.ui.tui.screens.pick import PickScreen
from exlchat.ui.tui.screens.prompt import PromptScreen
from exlchat.ui.tui.screens.settings import SettingsScreen
from exlchat.ui.tui.widgets.transcript import TranscriptItem
from tests.ui.app_harness import app, chat_app, idle, say, shown, until
from tests.ui.settling import settled
from tests.ui.tui.doors import talk_tree

Compare = Callable[..., bool]
Stage = Callable[[Pilot[int]], Awaitable[None]]

ASKED = "How do I sort words by their length?"
ANSWER = """### With a key

`sorted` takes a *function*, see [the manual](https://docs.python.org/3/howto/sorting.html):

```python
def by_length(words: list[str], most=12) -> list[str]:
    # words of one length stay in order
    return sorted(words, key=len)[:most] or ["none"]
```

| call | in place |
|---|---|
| `sorted(words)` | no |
| `words.sort()` | **yes** |

> Stable since 2.2.

- [x] sorted
- [ ] shuffled
"""
MODELS = (
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
    Entry("broken", ModelCard("/models/broken", 3 * 2**20, problem="config.json: not valid JSON")),
)


async def conversation(pilot: Pilot[int]) -> None:
    chat = chat_app(pilot)
    (newest,) = chat.session.store.list_conversations()
    chat.chat_screen.open_conversation(newest.id)
    view = chat.chat_screen.transcript
    view.append_message(TranscriptItem("thinking", "thinking", "They want a key, not a comparison."))
    view.append_message(TranscriptItem("cut", "assistant", "And then", "stopped · /continue goes on", "partial"))
    view.append_message(TranscriptItem("system", "system", "Answer in few words."))
    view.append_message(TranscriptItem("notice", "notice", "A remark of exlchat itself."))
    await still(pilot)


async def welcome(pilot: Pilot[int]) -> None:
    await until(pilot, lambda: chat_app(pilot).chat_screen.welcome.display)


async def help_screen(pilot: Pilot[int]) -> None:
    await pilot.press("f1")


async def models(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    screen = ModelsScreen(lambda: MODELS, Path("/models/tern"))
    await pilot.app.push_screen(screen)
    await until(pilot, lambda: screen.options.option_count == len(MODELS))


async def rename(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.app.push_screen(InputScreen("Rename", "Words by length", hint="Enter keeps · Esc leaves"))


async def palette(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press("ctrl+p")
    await pilot.press(*"theme")
    await until(pilot, lambda: "Theme: exlchat-dark" in shown(chat_app(pilot)))


async def answered(pilot: Pilot[int]) -> None:
    """A conversation with an answer of the scripted engine, whose figures and chances are always the same."""
    await say(pilot, "What is a raft?")
    await idle(pilot)


async def settings_screen(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press("f2")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingsScreen))


async def sampling(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press("f6")
    await until(pilot, lambda: "top_p" in shown(chat_app(pilot)))


async def personas(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press("f7", *"coder")
    await until(pilot, lambda: "Coder" in shown(chat_app(pilot)))


async def prompt(pilot: Pilot[int]) -> None:
    await answered(pilot)
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, PromptScreen))


async def statistics(pilot: Pilot[int]) -> None:
    await answered(pilot)
    await pilot.press("f9")
    await until(pilot, lambda: "Pages" in shown(chat_app(pilot)))


async def cache(pilot: Pilot[int]) -> None:
    await answered(pilot)
    await say(pilot, "/cache")
    await until(pilot, lambda: "Esc closes" in shown(chat_app(pilot)))


async def help_on_a_message(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await on_the_last_message(pilot)
    await pilot.press("f1")
    await until(pilot, lambda: "On a message" in shown(chat_app(pilot)))


async def probabilities(pilot: Pilot[int]) -> None:
    await answered(pilot)
    await on_the_last_message(pilot)
    await pilot.press("i")
    await until(pilot, lambda: "rank 1" in shown(chat_app(pilot)))
    await pilot.press("right", "right")


async def compare(pilot: Pilot[int]) -> None:
    await answered(pilot)
    session = chat_app(pilot).session
    session.draw_by(session.generation.with_value("temperature", "0.5"))
    await say(pilot, "/compare 2")
    await until(pilot, lambda: isinstance(pilot.app.screen, CompareScreen))
    await idle(pilot)


async def branches(pilot: Pilot[int]) -> None:
    chat = chat_app(pilot)
    chat.chat_screen.open_conversation(chat.session.store.write_tree(talk_tree()))
    await on_the_last_message(pilot)
    await pilot.press("t")
    await until(pilot, lambda: isinstance(chat.screen, PickScreen))


async def link(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    screen = chat_app(pilot).chat_screen
    screen.message_commands.links.of_message(screen.session.branch[1])
    await until(pilot, lambda: isinstance(pilot.app.screen, LinkScreen))


async def files(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press(*"see @")
    await until(pilot, lambda: "7 tokens" in shown(chat_app(pilot)))


async def found(pilot: Pilot[int]) -> None:
    await conversation(pilot)
    await pilot.press("ctrl+f", *"sorted", "enter")
    await until(pilot, lambda: "of 1 message" in shown(chat_app(pilot)))


async def on_the_last_message(pilot: Pilot[int]) -> None:
    """The cursor is there and painted: what opens over it next would keep it from being."""
    # The cursor begins at the last message that is seen, so it has to be seen.
    await still(pilot)
    await pilot.press("ctrl+up")
    await still(pilot)


async def still(pilot: Pilot[int]) -> None:
    """Wait until nothing is on its way to any screen."""
    assert await settled(pilot.app)


def staged(folder: Path, theme: str, stage: Stage) -> tuple[App[int], Stage]:
    store = ConversationStore(folder / "conversations.db")
    if stage not in (welcome, prompt, probabilities, compare, statistics, cache):
        open_one = store.create_conversation("Words by length")
        store.add_message(open_one.id, "user", ASKED)
        store.add_message(open_one.id, "assistant", ANSWER)
    chat = app(folder, store=store)

    async def run(pilot: Pilot[int]) -> None:
        chat.animation_level = "none"
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        chat.choose_theme(theme)
        await still(pilot)
        chat.chat_screen.composer.cursor_blink = False
        await stage(pilot)
        # Before a screen is composed it has no fields.
        await still(pilot)
        for field in chat.screen.query(Input):
            field.cursor_blink = False
        await still(pilot)
        # What lies under a dialog is painted when the dialog is, which may be before it has anything to show.
        chat.screen.refresh(layout=True)
        await still(pilot)

    return chat, run


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pictures show of the machine: its time zone, and a folder with one file. Its speed is not to be seen."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("a raft.")
    monkeypatch.chdir(work)


STAGES = (
    conversation,
    welcome,
    help_screen,
    models,
    rename,
    palette,
    settings_screen,
    sampling,
    personas,
    prompt,
    probabilities,
    statistics,
    cache,
    help_on_a_message,
    compare,
    branches,
    link,
    files,
    found,
)


THEMES = ("exlchat-dark", "rime")
SIZES = ((80, 24), (120, 40))
CASES = [
    # Each stage in both themes and both sizes, one of the two with --long: colours do not depend on the size.
    pytest.param(
        stage,
        theme,
        size,
        id=f"{stage.__name__}-{theme}-{size[0]}x{size[1]}",
        marks=() if THEMES.index(theme) == place // 2 % 2 else pytest.mark.long,
    )
    for place, stage in enumerate(STAGES)
    for theme, size in zip(THEMES, SIZES if place % 2 else SIZES[::-1], strict=True)
]


@pytest.mark.parametrize(("stage", "theme", "size"), CASES)
def test_screen(tmp_path: Path, snap_compare: Compare, stage: Stage, theme: str, size: tuple[int, int]) -> None:
    chat, run = staged(tmp_path, theme, stage)
    assert snap_compare(chat, terminal_size=size, run_before=run)

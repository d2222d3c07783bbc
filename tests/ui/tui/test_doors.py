"""Every action of the registry through every one of its doors: keys, slash command, palette. No door is dead."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from exlchat.app.commands.action import Action, Place
from exlchat.app.commands.actions import ACTIONS
from exlchat.app.keys.names import MOVING
from exlchat.chat.store.conversations import ConversationStore
from tests.ui.app_harness import app
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.doors import EFFECTS, Stage, answering

QUIET = {
    "stop": "Escape stops what there is; where nothing is to be stopped, nothing is to be said",
    "new": "it is new already",
    "scroll-page": "there is nothing to scroll",
    "scroll-ends": "there is nothing to scroll",
    "message-up": "there is no message above",
    "message-down": "there is no message below",
    "message-ends": "the cursor is there already",
}
"""Actions that may do nothing where there is nothing to do, and why."""
_PLACES: tuple[Place, ...] = ("composer", "message", "sidebar")


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    engine = ScriptedEngine()
    chat = app(folder, engine, store=ConversationStore(None))
    async with chat.run_test(size=(84, 16), notifications=True):
        stage = Stage(chat, engine)
        assert await stage.until(lambda: chat.chat_screen.model.info is not None)
        yield stage


def test_every_action_has_an_effect_that_these_tests_know() -> None:
    missing = [action.id for action in ACTIONS if action.id not in EFFECTS]
    assert not missing, f"how are these seen to be done? Say so in tests/ui/tui/doors.py, EFFECTS: {missing}"


def test_every_action_has_a_door() -> None:
    assert [action.id for action in ACTIONS if not (action.keys or action.slash or action.in_palette)] == []


@pytest.mark.parametrize("place", _PLACES)
async def test_keys_do_what_they_are_for(tmp_path: Path, place: Place) -> None:
    failed = []
    async with staged(tmp_path) as stage:
        for action in known():
            if action.place not in (place, "everywhere"):
                continue
            for key in action.keys:
                if taken(key, action, place):
                    continue
                await arranged(stage, action, place, key)
                if place != "composer" and action.place == "everywhere" and EFFECTS[action.id].seen(stage):
                    continue  # to be there is what it is for
                failed += await used(stage, action, f"{key} ({place})", stage.press(key))
    assert not failed, "\n".join(failed)


async def test_slash_commands_do_what_they_are_for(tmp_path: Path) -> None:
    failed = []
    async with staged(tmp_path) as stage:
        for action in known():
            if action.slash is None:
                continue
            await arranged(stage, action, "composer", "slash")
            stage.screen.composer.set_text(f"{action.slash} {EFFECTS[action.id].argument}".strip())
            await stage.settle()
            failed += await used(stage, action, action.slash, stage.press("enter"))
    assert not failed, "\n".join(failed)


async def test_palette_entries_do_what_they_are_for(tmp_path: Path) -> None:
    """Through the entries; that the palette finds and runs them is shown elsewhere."""
    failed = []
    async with staged(tmp_path) as stage:
        for action in known():
            if not action.in_palette:
                continue
            await arranged(stage, action, "composer", "palette")
            entries = {entry.title: entry for entry in stage.screen.palette_entries()[0]}
            if action.title not in entries:
                failed.append(f"the palette ({action.id}): it is not listed though it can be done")
                continue
            stage.chat.call_later(entries[action.title].run)
            failed += await used(stage, action, "the palette", stage.settle(), begun=f"{action.slash} ")
    assert not failed, "\n".join(failed)


async def test_in_an_empty_conversation_every_door_does_something_or_says_why_not(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        failed = await dead_doors(stage, "composer", empty=True)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("place", ["composer", "message"])
async def test_while_an_answer_comes_every_door_does_something_or_says_why_not(tmp_path: Path, place: Place) -> None:
    async with staged(tmp_path) as stage:
        failed = await dead_doors(stage, place)
    assert not failed, "\n".join(failed)


async def dead_doors(stage: Stage, place: Place, *, empty: bool = False) -> list[str]:
    """First doors of a place that do nothing and say nothing, in an empty conversation or while an answer comes.

    That an action's other doors lead to the same is shown above.
    """
    failed = []
    fresh = False
    for action in ACTIONS:
        if action.id in QUIET:
            continue
        doors = list(action.keys) if action.place == ("message" if place == "message" else "everywhere") else []
        doors += [action.slash] if action.slash is not None and place == "composer" else []
        for door in doors[:1]:
            if not fresh:
                await stage.reset(place, empty=empty)
                if not empty:
                    await answering(stage)
                if place == "message":
                    stage.screen.transcript.action_cursor(-1)
                await stage.settle()
            dead, fresh = await heeded(stage, action, door)
            failed += dead
    return failed


def known() -> list[Action]:
    """Those whose effect is known; another test says which are not."""
    return [action for action in ACTIONS if action.id in EFFECTS]


def taken(key: str, action: Action, place: Place) -> bool:
    """Whether a key that works everywhere is another's in this place, or moves about there."""
    if action.place != "everywhere" or place == "composer":
        return False
    others = {one for other in ACTIONS if other.place == place for one in other.keys}
    return key in others or (key in MOVING and place == "sidebar")


async def arranged(stage: Stage, action: Action, place: Place, door: str) -> None:
    """The app as it has to be before the door is used."""
    await stage.reset(place)
    stage.door = door
    await EFFECTS[action.id].arrange(stage)
    if place == "message" and not stage.screen.transcript.has_focus:
        stage.screen.transcript.focus()
    await stage.settle()
    stage.look()


async def used(stage: Stage, action: Action, door: str, use: object, begun: str | None = None) -> list[str]:
    """Go through a door; what is wrong with it, in a line."""
    seen = EFFECTS[action.id].seen
    already = seen(stage)
    await use  # type: ignore[misc]
    if already:
        return [f"{door} ({action.id}): its effect is seen before it is used; mend EFFECTS"]
    if await stage.until(lambda: seen(stage) or stage.screen.composer.text == begun):
        return []
    return [f"{door} ({action.id}): nothing of it is to be seen; said: {stage.heard!r}"]


async def heeded(stage: Stage, action: Action, door: str) -> tuple[list[str], bool]:
    """Go through a door; what is wrong if nothing changes and nothing is said, and whether a line is all there is."""
    stage.chat.clear_notifications()
    if door.startswith("/"):
        stage.screen.composer.set_text(f"{door} {'x' * action.argument_required}".strip())
        await stage.settle()
    stage.look()
    if door.startswith("/"):
        stage.before["typed"] = ""
    await stage.press("enter" if door.startswith("/") else door)
    if not await stage.until(lambda: stage.fingerprint() != stage.before):
        return [f"{door} ({action.id}): nothing happens and nothing is said"], True
    now = stage.fingerprint()
    stage.screen.composer.set_text("")
    return [], all(now[what] == was for what, was in stage.before.items() if what not in ("heard", "typed"))

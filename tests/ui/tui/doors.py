"""What each action of the registry is seen to do in the app, and a running app that is put back after each of them.

A new action needs a line in `EFFECTS`: how it is seen to have been done, by whichever door it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from textual import events

from exlchat.app.commands.action import Place
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import AnswerRecord, ConversationTree, Message
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.chat import ChatScreen
from tests.patience import PATIENCE, Patience
from tests.ui.app_harness import shown, told
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.settling import settled

LINES = "\n".join(f"x = {number}" for number in range(20))
CODE = f"One, [linked](https://example.org/one).\n\n```python\n{LINES}\n```\n\n" + "\n\n".join(
    f"Part {number}." for number in range(60)
)
ANSWER, OTHER = "Two.", "Dos."
_RECORD = AnswerRecord(
    "scripted",
    "model",
    SamplingSettings(),
    GenerationStats(9, 0, 3, 0.1, 0.1, 1.0, 1),
    "cancelled",
    seen_from="q1",
    summary="What was said before.",
)


@dataclass
class Stage:
    """A running app with one conversation open and another one beside it."""

    chat: ChatApp
    engine: ScriptedEngine
    copied: list[str] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    door: str = ""
    before: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Quitting and the clipboard reach out of the app.
        self.chat.copy_to_clipboard = self.copied.append  # type: ignore[method-assign, assignment]
        self.chat.exit = self.left.append  # type: ignore[method-assign, assignment]

    @property
    def screen(self) -> ChatScreen:
        return self.chat.chat_screen

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.chat.session.branch]

    @property
    def last(self) -> str:
        return self.texts[-1] if self.texts else ""

    @property
    def heard(self) -> str:
        """All that the program says beside the conversation: toasts, and remarks in the transcript."""
        items = self.screen.transcript._messages
        notes = [items[at].text for at in range(len(items)) if items[at].key.startswith("note:")]
        return "\n".join([told(self.chat), *notes])

    def opened(self, screen: str, title: str = "") -> bool:
        """Whether a screen of this class is open, with a title on it."""
        return type(self.chat.screen).__name__ == screen and title in shown(self.chat)

    async def press(self, key: str) -> None:
        """A key as the terminal's driver brings it. Textual's pilot waits for an idle processor after each one."""
        self.chat.post_message(events.Key(key, key if len(key) == 1 else None))
        await self.settle()

    async def settle(self) -> None:
        """Wait until what was asked for so far has been done and painted."""
        await self.until(lambda: self.chat.screen.is_mounted, 2.0)
        for widget in (self.screen.composer, self.chat.screen):
            painted = asyncio.Event()
            widget.call_after_refresh(painted.set)
            await self.until(painted.is_set, 0.2)

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait until something is so; whether it came to be."""
        patience = Patience(seconds)
        while not condition():
            if patience.is_over():
                return False
            await asyncio.sleep(0.003)
        return True

    async def reset(self, place: Place, *, empty: bool = False) -> None:
        """A conversation that nothing was done to, nothing open above it, nothing said, and the focus in a place."""
        chat, screen = self.chat, self.screen
        self.engine.release()
        chat.session.stop()
        assert await self.until(lambda: not chat.session.busy)
        # A screen that is taken away in the middle of a key would not find its own parts.
        await settled(chat)
        if chat.incognito.is_shown:
            chat.incognito.close()
            await settled(chat)
        while chat.screen is not screen:
            await chat.pop_screen()
        if screen.find_bar.display:
            screen.find_bar.action_leave()
        screen.end_edit()
        screen.commands._last_ctrl_c = 0.0
        chat.session.list_history.is_newest = False
        store = chat.session.store
        for one in store.list_conversations():
            store.delete(one.id)
        while screen.services.tabs.are_several:
            screen.tabs.close()
        if empty:
            screen.new_conversation()
        else:
            store.write_tree(other_tree())
            screen.open_conversation(store.write_tree(talk_tree()))
        screen.show_sidebar(False)
        screen.composer.set_text("")
        screen.composer.focus()
        await self.settle()
        self._focus(place)
        await self.settle()
        chat.clear_notifications()
        self.copied.clear()
        self.left.clear()
        calm = chat.session.generation.with_value("temperature", "0.5")
        chat.session.draw_by(replace(calm, speech=AnswerOptions()))

    def _focus(self, place: Place) -> None:
        if place == "message":
            self.screen.transcript.focus()
        elif place == "sidebar":
            self.screen.show_sidebar(True)
            self.screen.sidebar.focus()

    def look(self) -> None:
        """Remember how things are before a door is used."""
        self.before = self.fingerprint()

    def fingerprint(self) -> dict[str, Any]:
        """Everything that an action could change."""
        chat, screen, session = self.chat, self.screen, self.chat.session
        return {
            "conversation": session.conversation_id,
            "title": session.conversation.title if session.conversation is not None else None,
            "texts": tuple(self.texts),
            "pinned": tuple(one.pinned for one in session.branch),
            "many": len(session.store.list_conversations()),
            "screen": (chat.current_mode, type(chat.screen).__name__),
            "focus": chat.focused.id if chat.focused is not None else None,
            "heard": self.heard,
            "scroll": screen.transcript.scroll_y,
            "cursor": screen.transcript.cursor,
            "view": _view(self),
            "typed": screen.composer.text,
            "chosen": screen.sidebar.highlighted,
            "sidebar": screen.sidebar_shown,
            "find": screen.find_bar.display,
            "busy": session.busy,
            "theme": chat.theme,
            "copied": tuple(self.copied),
            "left": tuple(self.left),
            "speech": session.generation.speech,
        }


def talk_tree() -> ConversationTree:
    return ConversationTree(
        "Talk",
        1e9,
        2e9,
        "a2",
        (
            Message("q1", None, "user", "one?", 1e9),
            Message("a1", "q1", "assistant", CODE, 1e9 + 1),
            Message("q2", "a1", "user", "two?", 1e9 + 2),
            Message("a0", "q2", "assistant", OTHER, 1e9 + 3),
            Message("a2", "q2", "assistant", ANSWER, 1e9 + 4, status="partial", record=_RECORD),
        ),
    )


def other_tree() -> ConversationTree:
    return ConversationTree("Other", 1e9, 1e9, "o1", (Message("o1", None, "user", "other?", 1e9),))


Seen = Callable[[Stage], bool]
Arranged = Callable[[Stage], Awaitable[None]]


async def nothing(_: Stage) -> None:
    """The conversation as it is will do."""


@dataclass(frozen=True)
class Effect:
    """How an action is seen to have been done.

    Args:
        seen: false before, true soon after.
        arrange: what has to be so before it can be done.
        argument: typed after the slash command.
    """

    seen: Seen
    arrange: Arranged = nothing
    argument: str = ""


def typed(text: str) -> Arranged:
    async def arrange(stage: Stage) -> None:
        stage.screen.composer.set_text(text)
        await stage.settle()

    return arrange


def done(*action_ids: str) -> Arranged:
    """Other actions have been done before, and what they said is gone."""

    async def arrange(stage: Stage) -> None:
        for action_id in action_ids:
            assert stage.screen.commands.run(action_id), action_id
        await stage.settle()
        stage.chat.clear_notifications()

    return arrange


async def answering(stage: Stage) -> None:
    """An answer is on its way and stands still."""
    stage.engine.hold()
    stage.screen.send("three?")
    assert await stage.until(lambda: stage.chat.session.being_written is not None)


async def beginning(stage: Stage) -> None:
    """The first line is in sight if the key goes down or to the end."""
    if stage.door in ("pagedown", "ctrl+end"):
        stage.screen.transcript.scroll_home(animate=False)
    await stage.settle()


async def first_message(stage: Stage) -> None:
    """The cursor is on the first message if the key goes down or to the end."""
    if stage.door in ("down", "j", "end"):
        stage.screen.transcript.action_cursor_end(False)
    await stage.settle()


async def typed_before(stage: Stage) -> None:
    """Something was typed in this run."""
    stage.chat.services.typed.add("what is a raft?")


async def first_alternative(stage: Stage) -> None:
    """The other answer is shown, with the cursor on it."""
    stage.screen.commands.run("alternative", "1")
    await stage.settle()
    stage.screen.transcript.action_cursor_end(True)


async def on_code(stage: Stage) -> None:
    """The cursor is on the message with code."""
    code = next(one.id for one in stage.chat.session.branch if one.text == CODE)
    stage.screen.transcript.move_cursor_to(code)


async def looked_for(stage: Stage) -> None:
    """A word of two messages is marked, and the cursor is on it in one of them."""
    stage.screen.transcript.look_for("two")
    stage.screen.transcript.go_to_found(1)
    await stage.settle()


async def recalled(stage: Stage) -> None:
    """There is a draft, and for the key down the prompt before it stands in its place."""
    stage.screen.composer.set_text("draft")
    if stage.door == "down":
        await stage.press("up")


async def two_tabs(stage: Stage) -> None:
    """The conversation in one tab, a new one in the other."""
    here = stage.chat.session.require_open()
    stage.screen.tabs.open_new("")
    stage.screen.tabs.go_to(here)


async def other_chosen(stage: Stage) -> None:
    """The other conversation is the one under the cursor of the sidebar."""
    ids = [option.id for option in stage.screen.sidebar.options]
    other = next(one.id for one in stage.chat.session.store.list_conversations() if one.title == "Other")
    stage.screen.sidebar.highlighted = ids.index(other)


async def other_deleted(stage: Stage) -> None:
    """The other conversation was deleted in the sidebar."""
    other = next(one.id for one in stage.chat.session.store.list_conversations() if one.title == "Other")
    stage.chat.session.delete_all([other])
    stage.screen.refresh_around()
    await stage.settle()


def _moved(stage: Stage) -> bool:
    by, was, now = stage.door, stage.before["scroll"], stage.screen.transcript.scroll_y
    return bool(now > was) if by in ("pagedown", "ctrl+end") else bool(now < was)


def _cursor_moved(stage: Stage) -> bool:
    return stage.screen.transcript.cursor not in (None, stage.before["cursor"])


def _view(stage: Stage) -> str:
    transcript = stage.screen.transcript
    return transcript.view_of(transcript.cursor) if transcript.cursor is not None else ""


def _view_of_first(stage: Stage) -> str:
    return stage.screen.transcript.view_of(stage.chat.session.branch[0].id)


def _pinned(stage: Stage) -> bool:
    return bool(stage.chat.session.branch) and stage.chat.session.branch[-1].pinned


def _many(stage: Stage) -> int:
    return len(stage.chat.session.store.list_conversations())


def speech(seen: Callable[[AnswerOptions], bool]) -> Seen:
    """What the next answers are asked to be, and that it was said."""
    return lambda stage: seen(stage.chat.session.generation.speech)


EFFECTS: dict[str, Effect] = {
    "send": Effect(lambda s: "three?" in s.texts, typed("three?")),
    "new-line": Effect(lambda s: s.screen.composer.text == "a\n", typed("a")),
    "earlier-prompt": Effect(lambda s: s.screen.composer.text == ("draft" if s.door == "down" else "two?"), recalled),
    "history": Effect(lambda s: s.opened("PickScreen", "What you typed"), typed_before),
    "editor": Effect(lambda s: "cannot be given to an editor" in s.heard),
    "stop": Effect(lambda s: not s.chat.session.busy, answering),
    "new": Effect(lambda s: s.chat.session.conversation_id is None),
    "sidebar": Effect(lambda s: s.screen.sidebar_shown is not s.before["sidebar"]),
    "open": Effect(lambda s: s.screen.sidebar.has_focus),
    "retry": Effect(lambda s: s.last == "ok"),
    "continue": Effect(lambda s: s.last == f"{ANSWER}ok"),
    "pin": Effect(_pinned),
    "leave-out": Effect(lambda s: s.chat.session.branch[-1].left_out),
    "take-in": Effect(lambda s: not any(one.left_out for one in s.chat.session.branch), done("leave-out")),
    "unpin": Effect(lambda s: not _pinned(s), done("pin")),
    "summary": Effect(lambda s: "What was said before." in s.heard),
    "copy": Effect(lambda s: s.copied == [ANSWER]),
    "messages": Effect(lambda s: s.screen.transcript.has_focus),
    "find": Effect(lambda s: s.screen.find_bar.display and s.screen.find_bar.field.has_focus),
    "compare": Effect(lambda s: s.opened("CompareScreen")),
    "tree": Effect(lambda s: s.opened("PickScreen", "Branches")),
    "search": Effect(lambda s: s.opened("PickScreen", "Search")),
    "edit": Effect(lambda s: s.screen.composer.has_focus and s.screen.composer.text == ANSWER),
    "alternative": Effect(lambda s: s.last == OTHER, argument="1"),
    "branch": Effect(lambda s: s.last == ANSWER and s.chat.session.conversation_id != s.before["conversation"]),
    "cut": Effect(lambda s: len(s.texts) < 4 or s.last != ANSWER),
    "rename": Effect(
        lambda s: s.chat.session.conversation is not None and s.chat.session.conversation.title == "Harbour",
        argument="Harbour",
    ),
    "save": Effect(lambda s: "all that is said is kept in" in s.heard or "nothing of this session is kept" in s.heard),
    "delete": Effect(lambda s: _many(s) == 1),
    "undo": Effect(lambda s: not _pinned(s), done("pin")),
    "redo": Effect(_pinned, done("pin", "undo")),
    "system": Effect(lambda s: s.chat.session.system_prompt == "Be brief.", argument="Be brief."),
    "persona": Effect(lambda s: s.opened("PickScreen", "Personas")),
    "note": Effect(
        lambda s: s.chat.session.spoken.own.note is not None and s.chat.session.spoken.own.note.text == "It rains.",
        argument="It rains.",
    ),
    "group": Effect(lambda s: s.chat.session.spoken.who == "Narrator, Teacher", argument="narrator teacher"),
    "speak": Effect(lambda s: "no group speaks here" in s.heard, argument="Ada"),
    "preset": Effect(lambda s: s.opened("PickScreen", "Sampling presets")),
    "template": Effect(lambda s: s.opened("PickScreen", "Prompt formats")),
    "theme": Effect(lambda s: "Theme: exlchat-dark" in s.heard),
    "set": Effect(lambda s: "temperature 0.5" in s.heard),
    "model": Effect(lambda s: "scripted" in s.heard),
    "models": Effect(lambda s: s.opened("ModelsScreen")),
    # The palette takes the usual port, which another program here may have.
    "serve": Effect(lambda s: s.opened("ServingScreen") or "cannot be listened on" in s.heard, argument="0"),
    "sampling": Effect(lambda s: s.opened("SamplingScreen")),
    "stats": Effect(lambda s: s.opened("StatsScreen")),
    "schema": Effect(
        speech(lambda one: one.constraint is not None and one.constraint.kind == "json_schema"),
        argument='{"type": "object"}',
    ),
    "regex": Effect(speech(lambda one: one.constraint is not None and one.constraint.kind == "regex"), argument="a+"),
    "choice": Effect(
        speech(lambda one: one.constraint is not None and one.constraint.choices == ("yes", "no")), argument="yes, no"
    ),
    "grammar": Effect(
        speech(lambda one: one.constraint is not None and one.constraint.kind == "grammar"), argument='start: "a"'
    ),
    "ban": Effect(speech(lambda one: one.ban == ("delve",)), argument="delve"),
    "stop-text": Effect(speech(lambda one: one.stop == ("THE END",)), argument="THE END"),
    "begin": Effect(speech(lambda one: one.begin == "Sure:"), argument="Sure:"),
    "think": Effect(speech(lambda one: one.thinking_budget == 50), argument="50"),
    "negative": Effect(speech(lambda one: one.negative == "Be long."), argument="Be long."),
    "draft": Effect(speech(lambda one: one.draft == "off"), argument="off"),
    "logprobs": Effect(speech(lambda one: one.logprobs == 3), argument="3"),
    "cache": Effect(lambda s: s.opened("RowsScreen", "Cache")),
    "cost": Effect(lambda s: "tokens" in s.heard),
    "prompt": Effect(lambda s: s.opened("PromptScreen")),
    "palette": Effect(lambda s: s.opened("Palette")),
    "log": Effect(lambda s: s.opened("RowsScreen", "Log")),
    "settings": Effect(lambda s: s.opened("SettingsScreen")),
    "help": Effect(lambda s: s.opened("HelpScreen")),
    "scroll-page": Effect(_moved, beginning),
    "scroll-ends": Effect(_moved, beginning),
    "copy-or-stop": Effect(lambda s: "ctrl+c again quits" in s.heard),
    "quit": Effect(lambda s: bool(s.left)),
    "message-up": Effect(_cursor_moved, first_message),
    "message-down": Effect(_cursor_moved, first_message),
    "found-next": Effect(_cursor_moved, looked_for),
    "found-before": Effect(_cursor_moved, looked_for),
    "message-ends": Effect(_cursor_moved, first_message),
    "copy-message": Effect(lambda s: s.copied == [ANSWER]),
    "copy-code": Effect(lambda s: bool(s.copied) and "Copied code" in s.heard, on_code),
    "answer-again": Effect(lambda s: s.last == "ok"),
    "alternative-before": Effect(lambda s: s.last == OTHER),
    "alternative-after": Effect(lambda s: s.last == ANSWER, first_alternative),
    "pin-message": Effect(_pinned),
    "leave-out-message": Effect(lambda s: s.chat.session.branch[-1].left_out),
    "fold-above": Effect(lambda s: _view_of_first(s) == "folded"),
    "continue-message": Effect(lambda s: s.last == f"{ANSWER}ok"),
    "fold": Effect(lambda s: _view(s) == "folded"),
    "source": Effect(lambda s: _view(s) == "source"),
    "save-code": Effect(lambda s: s.opened("InputScreen"), on_code),
    "fold-code": Effect(lambda s: "more lines" in shown(s.chat), on_code),
    "open-link": Effect(lambda s: s.opened("LinkScreen"), on_code),
    "probabilities": Effect(lambda s: s.opened("ProbabilitiesScreen")),
    "leave-messages": Effect(lambda s: s.screen.composer.has_focus),
    "open-selected": Effect(lambda s: s.texts == ["other?"], other_chosen),
    "tab-selected": Effect(lambda s: s.texts == ["other?"], other_chosen),
    "tab": Effect(lambda s: len(s.screen.services.tabs.idents) > 1),
    "close-tab": Effect(lambda s: len(s.screen.services.tabs.idents) == 1, two_tabs),
    "incognito": Effect(lambda s: s.chat.incognito.is_shown),
    "keep": Effect(lambda s: "kept" in s.heard),
    "next-tab": Effect(lambda s: s.texts == [], two_tabs),
    "previous-tab": Effect(lambda s: s.texts == [], two_tabs),
    "rename-selected": Effect(lambda s: s.opened("InputScreen"), other_chosen),
    "delete-selected": Effect(lambda s: s.opened("QuestionScreen"), other_chosen),
    "mark-selected": Effect(lambda s: len(s.screen.sidebar.marked) == 1, other_chosen),
    "tag-selected": Effect(lambda s: s.opened("InputScreen", "Tags"), other_chosen),
    "folder-selected": Effect(lambda s: s.opened("InputScreen", "Folder"), other_chosen),
    "pin-selected": Effect(lambda s: any(one.pinned for one in s.screen.summaries()), other_chosen),
    "archive-selected": Effect(lambda s: _many(s) == 1, other_chosen),
    "export-selected": Effect(lambda s: s.opened("InputScreen", "Export"), other_chosen),
    "tag": Effect(lambda s: "has no tags" in s.heard),
    "folder": Effect(lambda s: "In no folder" in s.heard),
    "on-top": Effect(lambda s: any(one.pinned for one in s.screen.summaries())),
    "archive": Effect(lambda s: _many(s) == 1),
    "archived": Effect(lambda s: s.opened("PickScreen") or "archive" in s.heard),
    "import": Effect(lambda s: "no such file" in s.heard, argument="nothing.json"),
    "undo-delete": Effect(lambda s: _many(s) == 2, other_deleted),
    "leave-sidebar": Effect(lambda s: s.screen.composer.has_focus),
}

"""Every slash command of the registry in the line mode: it does what it is for, or says that it needs the app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exlchat.app.commands.actions import ACTIONS
from exlchat.chat.store.conversations import ConversationStore
from tests.ui.line.harness import Line, line_mode, until
from tests.ui.tui.doors import EFFECTS, OTHER, other_tree, talk_tree

NEEDS_TERMINAL = {"editor"}
"""Tried in tests/e2e/test_line.py."""
NEEDS_APP = "needs the screen of the app"


def says(text: str) -> Callable[[Line, str], bool]:
    return lambda _, written: text in written


def _texts(line: Line) -> list[str]:
    return [one.text for one in line.chat.session.branch]


SEEN: dict[str, Callable[[Line, str], bool]] = {
    "new": lambda line, _: line.chat.session.conversation_id is None,
    "open": says("/open N opens one of these:"),
    "tab": says("one conversation is open at a time here"),
    "close-tab": says("one conversation is open at a time here"),
    "incognito": says("nothing of this start is kept already"),
    "keep": says("/save FILE writes this conversation to a file"),
    "retry": lambda line, written: "ok" in written and _texts(line)[-1] == "ok",
    "continue": lambda line, written: "ok" in written and _texts(line)[-1] == "Two.ok",
    "pin": lambda line, _: line.chat.session.branch[-1].pinned,
    "unpin": says("No longer pinned"),
    "leave-out": lambda line, _: line.chat.session.branch[-1].left_out,
    "take-in": says("again"),
    "summary": says("What was said before."),
    "copy": says("Copied the last answer"),
    "alternative": lambda line, _: _texts(line)[-1] == OTHER,
    "branch": says("This is a new conversation with what came before"),
    "cut": says("Deleted from there on"),
    "save": says("nothing of this session is kept"),
    "rename": lambda line, _: any(one.title == "Harbour" for one in line.chat.session.store.list_conversations()),
    "delete": says("Deleted “Talk”"),
    "tag": says("This conversation has no tags"),
    "folder": says("In no folder"),
    "on-top": says("at the head of the list"),
    "archive": says("in the archive"),
    "archived": says("In the archive"),
    "import": says("there is no such file"),
    "undo": says("Undone: "),
    "redo": says("Done again: "),
    "system": says("The system prompt is set"),
    "persona": says("/persona NAME changes that"),
    "note": says("The author's note stands 4 messages before the end"),
    "group": says("Narrator, Teacher speak from here on"),
    "speak": says("no group speaks here"),
    "preset": says("/preset NAME chooses one of these"),
    "template": says("model"),
    "theme": says("Theme: exlchat-dark"),
    "set": says("temperature 0"),
    "model": says("scripted"),
    "models": says("Looking through the folders"),
    "serve": says("Address: http://127.0.0.1:"),
    "stats": says("tok/s"),
    "history": says("nothing was typed yet"),
    "messages": says("two?"),
    "find": says("/find TEXT"),
    "compare": says("answers"),
    "tree": says("one?"),
    "search": says("/search needs TEXT"),
    "edit": lambda line, _: line.chat.editing.active,
    "source": says("Two."),
    "save-code": says("Saved code-1.py"),
    "prompt": says("tokens"),
    "settings": says("temperature"),
    "sidebar": says("/open N opens one of these:"),
    "log": says("Said in this run"),
    "sampling": says("temperature"),
    "probabilities": says("token"),
    "schema": says("constraint: schema"),
    "regex": says("constraint: regex"),
    "choice": says("constraint: choice"),
    "grammar": says("constraint: grammar"),
    "ban": says("ban: "),
    "stop-text": says("stop: "),
    "begin": says("begin: "),
    "think": says("thinking_budget: 50"),
    "negative": says("It changes nothing while guidance_scale is 1"),
    "draft": says("draft: off"),
    "logprobs": says("logprobs: 3"),
    "cache": says("fp16"),
    "cost": says("tokens"),
    "help": says("Commands"),
    "quit": lambda line, _: line.chat.leaving,
}
"""How a command is seen to have been done, by the state of the chat and what was written since it was typed."""
FIRST = {"unpin": ("/pin",), "take-in": ("/leave-out",), "undo": ("/pin",), "redo": ("/pin", "/undo")}


async def test_every_slash_command_does_what_it_is_for_or_needs_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ConversationStore(None)
    store.write_tree(other_tree())
    failed = []
    async with line_mode(tmp_path, store=store) as line:
        await line.idle()
        for action in sorted(ACTIONS, key=lambda action: action.id == "quit"):
            if action.slash is None or action.id in NEEDS_TERMINAL:
                continue
            seen = SEEN.get(action.id, says(NEEDS_APP))
            line.chat.open_conversation(store.write_tree(talk_tree()))
            for command in FIRST.get(action.id, ()):
                line.chat.submit(command)
            before = len(line.text)
            argument = EFFECTS[action.id].argument if action.id in EFFECTS else "x" * action.argument_required
            line.chat.submit(f"{action.slash} {argument}".strip())
            try:
                await until(lambda before=before, seen=seen: seen(line, line.text[before:]))  # type: ignore[misc]
            except AssertionError:
                failed.append(f"{action.slash}: neither done nor said why not; written: {line.text[before:]!r}")
            await until(lambda: not line.chat.session.busy)
    assert not failed, "\n".join(failed)

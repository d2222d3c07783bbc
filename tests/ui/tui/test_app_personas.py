"""The app started with a persona."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat import paths
from exlchat.chat.personas.frozen import FrozenPersona
from tests.ui.app_harness import app, chat_app, idle, say, shown, told, transcript
from tests.ui.scripted_engine import ScriptedEngine

ADA = FrozenPersona("Ada", "Ada", "User", 0, system="You are Ada.", greetings=("Come in.", "Hello."))


async def test_the_greeting_is_there_at_once_and_the_model_sees_it(tmp_path: Path) -> None:
    engine = ScriptedEngine("Sit down.")
    chat = app(tmp_path, engine, persona=ADA)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "Come in." in shown(chat)
        assert chat.session.store.list_conversations() == []
        await say(pilot, "Thank you.")
        await idle(pilot)
        assert [one.role for one in chat.session.branch] == ["system", "assistant", "user", "assistant"]
        assert [one.text for one in chat.session.store.alternatives(chat.session.branch[1].id)] == [
            "Come in.",
            "Hello.",
        ]
        assert [one.title for one in chat.session.store.list_conversations()] == ["Thank you."]
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "Come in." in shown(chat)
        assert "Thank you." not in shown(chat).splitlines()[3]
    assert engine.prompts[0].startswith("<|im_start|>system\nYou are Ada.<|im_end|>\n")
    assert "<|im_start|>assistant\nCome in.<|im_end|>\n<|im_start|>user\nThank you.<|im_end|>" in engine.prompts[0]


async def test_what_is_typed_below_a_greeting_is_there_at_the_next_start(tmp_path: Path) -> None:
    chat = app(tmp_path, persona=ADA)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"thought")
        await pilot.press("ctrl+q")
    again = app(tmp_path, persona=ADA)
    async with again.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert again.chat_screen.composer.text == "thought"
        assert "Come in." in shown(again)


async def test_a_persona_without_a_greeting_waits_for_the_user(tmp_path: Path) -> None:
    engine = ScriptedEngine("Yes.")
    chat = app(tmp_path, engine, persona=FrozenPersona("Bo", "Bo", "User", 0, system="You are Bo."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert chat.session.conversation_id is None
        await say(pilot, "Bo?")
        await idle(pilot)
    assert engine.prompts[0].startswith("<|im_start|>system\nYou are Bo.<|im_end|>\n<|im_start|>user\nBo?")


async def test_another_persona_speaks_from_here_on(tmp_path: Path) -> None:
    engine = ScriptedEngine("Yes.", "Of course.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Hello.")
        await idle(pilot)
        await say(pilot, "/persona teacher")
        await pilot.pause()
        assert "speaks from here on" in told(chat)
        await say(pilot, "Why?")
        await idle(pilot)
        switch = chat.session.branch[2]
        assert switch.role == "system"
        assert switch.persona is not None
        assert switch.text in engine.prompts[1]
        assert chat.session.branch[-1].record is not None
        assert chat.session.branch[-1].record.persona == chat.session.persona.name
        folder = paths.folders().personas
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bo.toml").write_text('name = "Bo"\nmodel = "org/away"\n')
        await say(pilot, "/persona bo")
        await pilot.pause()
        assert "Bo speaks from here on; it is meant for another model: org/away: no such folder" in told(chat)
        await say(pilot, "/persona nobody-at-all")
        await pilot.pause()
        assert "nobody-at-all" in told(chat)


def beside_the_list(pilot: Pilot[int]) -> list[str]:
    """The lines of the screen from where the conversation begins: a start without any shows no list."""
    left = transcript(pilot).region.x
    return [line[left:].strip() for line in shown(chat_app(pilot)).splitlines()]


async def test_names_stand_over_what_is_said_and_the_card_is_folded(tmp_path: Path) -> None:
    long = "You are Ada.\n" + "She counts.\n" * 40
    ada = FrozenPersona("Ada", "Countess", "Anna", 0, system=long, greetings=("Come in.", "Hello.", "Yes?"))
    chat = app(tmp_path, ScriptedEngine("Sit down.", "Again."), persona=ada)
    async with chat.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        lines = beside_the_list(pilot)
        assert "┊ ▸ Ada · You are Ada. … 41 lines" in lines
        assert lines[lines.index("Countess") + 1] == "│ Come in."
        assert "│ ‹1/3› · /alternative 2 shows another greeting" in lines
        assert "scripted   Ada" in lines[-1]
        await say(pilot, "/alternative 3")
        await pilot.pause()
        assert "Yes?" in shown(chat)
        assert "‹3/3› · /alternative 1 shows another greeting" in shown(chat)
        await say(pilot, "Thank you.")
        await idle(pilot)
        lines = beside_the_list(pilot)
        assert lines[lines.index("Anna") + 1] == "▌ Thank you."
        assert "shows another greeting" not in shown(chat)
        answers = [number for number, line in enumerate(lines) if line == "Countess"]
        assert [lines[number + 1] for number in answers] == ["│ Yes?", "│ Sit down."]
        await say(pilot, "/retry")
        await idle(pilot)
        lines = beside_the_list(pilot)
        assert lines[len(lines) - 1 - lines[::-1].index("Countess") + 1] == "│ Again."
        # A click on the line shows all of it, a key folds it again.
        row = next(number for number, line in enumerate(shown(chat).splitlines()) if "▸ Ada" in line)
        await pilot.click(offset=(40, row))
        await pilot.press("ctrl+up", "home")
        assert shown(chat).count("She counts.") > 5
        await pilot.press("space")
        assert "She counts." not in shown(chat)
        # Opened again, it is all the same.
        ident = chat.session.conversation_id
        assert ident is not None
        chat.chat_screen.open_conversation(ident)
        await pilot.pause()
        assert "▸ Ada · You are Ada. … 41 lines" in shown(chat)
        await say(pilot, "/system Be plain.")
        await pilot.pause()
        assert "Be plain." in shown(chat)
        assert "Ada" not in shown(chat).splitlines()[-1]


@pytest.mark.parametrize(
    ("char", "user", "over"),
    [
        ("\x1b[2J\x1b]0;x\x07Evil\u202e", "a\nb", ("Evil", "a b")),
        ("x" * 1_000_000, "y" * 1_000_000, ("x" * 20, "y" * 20)),
        ("", " \n\t", None),
        ("\x00\x1b", "\u200b", None),
    ],
)
async def test_any_name_is_one_clean_line_or_none(
    tmp_path: Path, char: str, user: str, over: tuple[str, str] | None
) -> None:
    odd = FrozenPersona(char or "none", char, user, 0, system="Speak.", greetings=("Come in.",))
    chat = app(tmp_path, ScriptedEngine("Sit down."), persona=odd)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "Thank you.")
        await idle(pilot)
        text = shown(chat)
        assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(text)
        assert all(len(line) <= 120 for line in text.splitlines())
        lines = [line[31:].strip() for line in text.splitlines()]
        place = lines.index("▌ Thank you.")
        if over is not None:
            assert over[0] in lines[place + 2 + lines[place + 2 :].index("│ Sit down.") - 1]
            assert lines[place - 1].startswith(over[1])
        assert lines.count("│ Come in.") == lines.count("│ Sit down.") == 1
        assert chat.session.branch[0].persona is not None
        assert chat.session.branch[0].persona["char"] == char


async def test_the_line_below_says_what_the_conversation_says_itself(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(200, 30)) as pilot:
        await say(pilot, "/set top_k 5")
        await pilot.pause()
        assert "this conversation: top_k 5" in shown(chat).splitlines()[-1]
        await say(pilot, "/preset wild")
        await say(pilot, "/template plain")
        await pilot.pause()
        assert "template plain" in shown(chat).splitlines()[-1]
        assert "preset wild" in shown(chat).splitlines()[-1]
        await pilot.press("f6")
        await pilot.pause()
        assert "template plain conversation" in " ".join(shown(chat).replace("│", " ").split())
        await pilot.press("escape", "ctrl+n")
        await pilot.pause()
        assert "this conversation" not in shown(chat).splitlines()[-1]


def card(folder: Path, name: str = "Ben") -> Path:
    path = folder / f"{name.lower()}.json"
    data = {"name": name, "description": f"{name} is a baker.", "first_mes": "Fresh bread?"}
    path.write_text(json.dumps({"spec": "chara_card_v2", "spec_version": "2.0", "data": data}))
    return path


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path


async def test_a_card_is_imported_inside_the_app_and_speaks(own_home: Path) -> None:
    chat = app(own_home, ScriptedEngine("Warm."))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, f"/import {card(own_home)}")
        await pilot.pause()
        assert "Ben is among the personas now; /persona ben has it speak" in told(chat)
        await say(pilot, "/persona ben")
        await pilot.pause()
        assert "Fresh bread?" in shown(chat)


async def test_a_card_is_a_persona_by_its_file_and_again(own_home: Path) -> None:
    chat = app(own_home, ScriptedEngine("Warm."))
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        for _ in range(2):
            await say(pilot, f"/persona {card(own_home)}")
            await pilot.pause()
            assert "Ben speaks from here on" in told(chat)
            assert "Fresh bread?" in shown(chat)
            await pilot.press("ctrl+n")
        # Another character of that name is not written over it.
        other = json.loads(card(own_home).read_text())
        other["data"]["description"] = "Ben is a smith."
        (own_home / "other.json").write_text(json.dumps(other))
        await say(pilot, f"/persona {own_home / 'other.json'}")
        await pilot.pause()
        assert "is there already; choose another name" in told(chat)
    assert "baker" in (own_home / "home" / "config" / "personas" / "ben.toml").read_text()


async def test_what_is_neither_a_card_nor_a_conversation_is_named_for_what_it_is(own_home: Path) -> None:
    (own_home / "x.json").write_text('{"a": 1}')
    (own_home / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    chat = app(own_home)
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, f"/import {own_home / 'x.json'}")
        await pilot.pause()
        assert "it holds no conversations in a form that is known" in told(chat)
        await say(pilot, f"/import {own_home / 'x.png'}")
        await pilot.pause()
        assert "x.png" in told(chat).splitlines()[-1]
        assert "conversations" not in told(chat).splitlines()[-1]

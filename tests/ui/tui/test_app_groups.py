"""A group chat in the app: gathered, spoken to, changed, taken back, opened again."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.chat.own_settings import OwnSettings
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.speakers import char_of, said_by
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, chat_app, idle, said, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def friends(home: Path) -> Path:
    folder = paths.folders().personas
    folder.mkdir(parents=True)
    (folder / "ada.toml").write_text('name = "Ada"\nsystem = "You are {{char}}."\ngreeting = "Come in, {{user}}."\n')
    (folder / "ben.toml").write_text('name = "Ben"\nsystem = "You are {{char}}."\n[sampling]\ntop_k = 9\n')
    (folder / "cleo.toml").write_text('name = "Cleo"\nsystem = "You are {{char}}."\n')
    (folder / "odd.toml").write_text('name = "\\u001b\\u0007"\nsystem = "Odd."\n')
    return folder


def screen(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").split())


async def ask(pilot: Pilot[int], text: str) -> None:
    await say(pilot, text)
    await idle(pilot)


def names(chat: ChatApp) -> list[str | None]:
    return [name for name in said_by(chat.session.branch) if name is not None]


async def test_a_group_is_gathered_greets_and_answers_by_name_under_its_names(tmp_path: Path) -> None:
    engine = ScriptedEngine("Cold.", "Warm.", "Mild.", "Dry.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben cleo")
        assert "Ada, Ben, Cleo speak from here on; whoever is named speaks, else by turn" in told(chat)
        assert "a group: Ada, Ben, Cleo" in screen(chat)
        assert "Ada Come in, User." in screen(chat)
        assert "Ada, Ben, Cleo" in chat.chat_screen.status.who.name
        await ask(pilot, "How is it there, Cleo?")
        await ask(pilot, "And there?")
        assert names(chat) == ["Ada", "User", "Cleo", "User", "Ada"]
        assert "Cleo Cold." in screen(chat)
        assert "Ada Warm." in screen(chat)
        await ask(pilot, "/speak Ben")
        assert names(chat)[-2:] == ["Ada", "Ben"]
        assert "Ben Mild." in screen(chat)
        # In a group what the conversation says holds for all, whatever one of them wishes for.
        assert engine.requests[-1].sampling.top_k == 0
        await ask(pilot, "/speak")
        assert names(chat)[-1] == "Cleo"
        assert "Ben: Mild." in engine.prompts[-1]
        assert "You are Cleo." in engine.prompts[-1]
        assert "You are Ben." not in engine.prompts[-1]


async def test_how_it_is_settled_who_speaks_is_kept_with_the_conversation(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        await say(pilot, "/group by turn")
        assert "From now on by turn" in told(chat)
        await ask(pilot, "Ada?")
        assert names(chat)[-1] == "Ben"
        await say(pilot, "/group by choice")
        await ask(pilot, "Ben?")
        assert names(chat)[-1] == "User"
        assert "you choose who speaks in this group, one of Ada, Ben: /speak NAME" in told(chat)
        await ask(pilot, "/retry")
        assert names(chat)[-1] == "User"
        await ask(pilot, "/speak Ada")
        assert names(chat)[-1] == "Ada"
        await say(pilot, "/undo")
        await pilot.press("f6")
        await pilot.pause()
        assert "group Ada, Ben · by turn conversation" in screen(chat)
        await pilot.press("escape")
        await say(pilot, "/group by magic")
        assert "who speaks next is settled by name, by turn or by choice: /group by name" in told(chat)
        ident = chat.session.conversation_id
        assert ident is not None
    again = app(tmp_path, ScriptedEngine("Four."))
    async with again.run_test(size=(110, 40)) as pilot:
        await pilot.pause()
        again.chat_screen.open_conversation(ident)
        await pilot.pause()
        assert again.session.spoken.speaks == "turn"
        assert again.session.spoken.who == "Ada, Ben"
        assert "Ben" in screen(again)
        await ask(pilot, "More.")
        assert names(again)[-1] == "Ben"


async def test_members_come_and_go_and_an_undo_takes_it_back(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await ask(pilot, "Hi.")
        await say(pilot, "/persona ada")
        # With whoever speaks there.
        await say(pilot, "/group add ben")
        assert chat.session.spoken.who == "Ada, Ben"
        await say(pilot, "/group add cleo")
        await ask(pilot, "Cleo?")
        await say(pilot, "/group remove Cleo")
        assert chat.session.spoken.who == "Ada, Ben"
        # Her answer stays hers, and is given again by her.
        await ask(pilot, "/retry")
        assert names(chat)[-1] == "Cleo"
        assert "You are Cleo." in engine.prompts[-1]
        await say(pilot, "/undo")
        await pilot.pause()
        assert "Undone: group" in told(chat)
        assert chat.session.spoken.who == "Ada, Ben, Cleo"
        await say(pilot, "/group -")
        assert chat.session.spoken.group is None
        await say(pilot, "/undo")
        assert chat.session.spoken.who == "Ada, Ben, Cleo"
        await say(pilot, "/persona ben")
        assert chat.session.spoken.who == "Ben"
        await say(pilot, "/undo")
        assert chat.session.spoken.who == "Ada, Ben, Cleo"


async def test_every_branch_has_its_own_group(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await ask(pilot, "Hi.")
        await say(pilot, "/group ada ben")
        await ask(pilot, "Ben?")
        await say(pilot, "/edit 4")
        await ask(pilot, "Hello.")
        # The message before the group is answered by nobody of it.
        assert chat.session.spoken.group is None
        assert char_of(chat.session.branch[-1]) is None
        await say(pilot, "/alternative 1")
        await pilot.pause()
        assert chat.session.spoken.who == "Ada, Ben"
        assert char_of(chat.session.branch[-1]) == "Ben"


async def test_what_all_are_told_is_the_system_prompt(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        await say(pilot, "/system It rains.")
        assert chat.session.spoken.who == "Ada, Ben"
        await ask(pilot, "Ben?")
        assert "You are Ben.\n\nIt rains.\n\nThis is a group chat of Ada, Ben and User." in engine.prompts[-1]
        await say(pilot, "/group add cleo")
        await ask(pilot, "Cleo?")
        assert "You are Cleo.\n\nIt rains." in engine.prompts[-1]


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("/group ada", "a group needs two characters; /persona NAME has one speak alone"),
        ("/group ada ada", "a character of the group is called Ada already"),
        ("/group ada zoe", "there is no persona 'zoe'"),
        ("/group ada odd", "has no name to be called by; give its file another"),
        ("/group add", "/group add needs the NAME of a persona"),
        ("/group add ada", "a group needs two characters"),
        ("/group remove Ada", "no group speaks here; /group NAME NAME begins one"),
        ("/group by turn", "no group speaks here; /group NAME NAME begins one"),
        ("/group -", "no group speaks here; /group NAME NAME begins one"),
        ("/speak Ada", "no group speaks here; /group NAME NAME begins one"),
        ("/speak", "no group speaks here; /group NAME NAME begins one"),
        ("/group", "No group speaks here; /group NAME NAME begins one of these"),
    ],
)
async def test_what_cannot_be_is_one_line_and_changes_nothing(tmp_path: Path, typed: str, line: str) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, typed)
        assert line in told(chat)
        assert "\x1b" not in told(chat)
        assert chat.session.conversation is None
        assert chat.session.spoken.own == OwnSettings()


async def test_a_group_of_one_and_a_name_that_is_not_there_leave_a_group_as_it_is(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        await say(pilot, "/group remove Ben")
        assert "a group needs two characters; /persona NAME has one speak alone" in told(chat)
        await say(pilot, "/speak Zoe")
        assert "there is no Zoe in this group; there are Ada, Ben" in told(chat)
        await say(pilot, "/group remove Zoe")
        assert sum("there is no Zoe in this group; there are Ada, Ben" in line for line in said(chat)) == 2
        await say(pilot, "/group")
        await until(pilot, lambda: "Group: Ada, Ben; whoever is named speaks, else by turn, Ben next" in screen(chat))
        assert chat.session.spoken.who == "Ada, Ben"


async def test_a_card_that_was_deleted_since_goes_on_speaking_and_cannot_be_added_again(
    tmp_path: Path, friends: Path
) -> None:
    engine = ScriptedEngine("One.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        (friends / "ben.toml").unlink()
        await ask(pilot, "Ben?")
        assert names(chat)[-1] == "Ben"
        assert "You are Ben." in engine.prompts[-1]
        await say(pilot, "/group ada ben")
        assert "there is no persona 'ben'" in told(chat)
        assert chat.session.spoken.who == "Ada, Ben"


async def test_a_cut_answer_behind_another_character_goes_on(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two and", " three.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        await ask(pilot, "Ada?")
        await say(pilot, "/set max_tokens 2")
        await ask(pilot, "/speak Ben")
        await say(pilot, "/set max_tokens none")
        assert chat.session.can_continue
        await ask(pilot, "/continue")
        assert names(chat)[-2:] == ["Ada", "Ben"]
        assert chat.session.branch[-1].edited_from is not None


async def test_names_with_spaces_are_parted_by_commas(tmp_path: Path, friends: Path) -> None:
    (friends / "old-tom.toml").write_text('name = "Old Tom"\nsystem = "x"\n')
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group Ada, Old Tom")
        assert chat.session.spoken.who == "Ada, Old Tom"
        await say(pilot, "/group add Cleo, Ben")
        assert chat.session.spoken.who == "Ada, Old Tom, Cleo, Ben"


async def test_a_damaged_group_in_the_database_is_one_line(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(110, 40)) as pilot:
        store = chat_app(pilot).session.store
        ident = store.create_conversation().id
        store.add_message(ident, "system", "", persona={"group": [{"char": "\x1b[2JAda"}, 3]})
        store.add_message(ident, "user", "Hi.")
        chat.chat_screen.open_conversation(ident)
        await pilot.pause()
        await ask(pilot, "/retry")
        assert "the group of this conversation is damaged" in screen(chat)
        assert "\x1b" not in shown(chat)
        assert chat.session.branch[-1].text == "Hi."


def test_what_was_said_of_who_speaks_comes_out_of_the_file_as_it_went_in() -> None:
    own = OwnSettings({"top_k": 3}, speaks="turn")
    assert OwnSettings.from_json(own.as_json()) == own
    assert OwnSettings.from_json({"values": {}, "speaks": "loudly"}) == OwnSettings()


async def test_a_first_persona_joins_no_group_by_itself(tmp_path: Path) -> None:
    ada = FrozenPersona("Ada", "Ada", "Bo", 0, system="You are Ada.", greetings=("Come in.",))
    chat = app(tmp_path, persona=ada)
    async with chat.run_test(size=(110, 40)) as pilot:
        await pilot.pause()
        await say(pilot, "/group ben cleo")
        assert chat.session.spoken.who == "Ben, Cleo"
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert chat.session.spoken.who == "Ada"


async def test_its_members_are_offered_behind_the_commands_that_take_one(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        composer, menu = chat.chat_screen.composer, chat.chat_screen.prompt.menu
        for typed, taken in (("/speak B", "/speak Ben"), ("/group remove A", "/group remove Ada")):
            composer.set_text(typed)
            await until(pilot, lambda taken=taken: menu.chosen_id == taken)  # type: ignore[misc]


async def test_lists_of_messages_name_who_spoke_and_several_answers_have_one_speaker(tmp_path: Path) -> None:
    engine = ScriptedEngine("Cold.", "Warm.", "Mild.", "Dry.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ada ben")
        await ask(pilot, "Ben?")
        await say(pilot, "/tree")
        await until(pilot, lambda: "Ben: Cold." in screen(chat))
        assert "Ada: Come in, User." in screen(chat)
        await pilot.press("escape")
        await say(pilot, "/set temperature 0.7")
        await say(pilot, "/compare 3")
        await until(pilot, lambda: "Mild." in shown(chat))
        await idle(pilot)
        await pilot.press("enter")
        await pilot.pause()
        tree = chat.session.store.read_tree(chat.session.conversation_id or "")
        assert [char_of(one) for one in tree.messages if one.record is not None] == ["Ben"] * 3


async def test_several_speak_one_after_the_other_until_somebody_stops_them(tmp_path: Path) -> None:
    engine = ScriptedEngine(*(f"Word {number}." for number in range(9)))
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "/group ben cleo ada")
        await ask(pilot, "Cleo?")
        await say(pilot, "/speak all")
        await until(pilot, lambda: names(chat)[-3:] == ["Ada", "Ben", "Cleo"] and not chat.session.busy)
        assert "Ada: Word 1." in engine.prompts[-1]
        assert "Ben: Word 2." in engine.prompts[-1]
        await say(pilot, "/speak Ben Cleo")
        await until(pilot, lambda: names(chat)[-2:] == ["Ben", "Cleo"] and not chat.session.busy)
        assert len(chat.session.branch) == 3 + 1 + 3 + 2
        # Whoever types meanwhile is heard next, and by whoever is named.
        engine.hold()
        await say(pilot, "/speak all")
        await until(pilot, lambda: chat.session.being_written is not None)
        await say(pilot, "Wait, Ben.")
        engine.release()
        await until(pilot, lambda: names(chat)[-3:] == ["Ada", "User", "Ben"] and not chat.session.busy)
        engine.hold()
        await say(pilot, "/speak all")
        await until(pilot, lambda: chat.session.being_written is not None)
        before = len(engine.requests)
        await pilot.press("escape")
        engine.release()
        await idle(pilot)
        assert len(engine.requests) == before
        await say(pilot, "/speak Ben Zoe")
        assert "there is no Zoe in this group" in told(chat)
        assert len(engine.requests) == before

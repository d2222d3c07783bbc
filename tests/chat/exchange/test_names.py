"""Who said what in a group goes into files, and comes out of those of other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from exlchat.chat.exchange.branch import active_branch
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.writing import Format, written
from exlchat.chat.model import AnswerRecord, ConversationTree, settings_of
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.group import Group, begin_group, group_of
from exlchat.chat.prompt.note import Note, note_in
from exlchat.chat.prompt.thinking import THINK
from exlchat.chat.speakers import said_by
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY, SamplingSettings
from tests.chat.exchange.trees import imported, json_lines, trees
from tests.chat.scripted_engine import ScriptedEngine

LINES = json_lines(
    {"user_name": "unused", "character_name": "unused", "chat_metadata": {}},
    {"name": "Ada", "is_user": False, "mes": "Come in.", "original_avatar": "Ada.png"},
    {"name": "Sam", "is_user": True, "mes": "Hi."},
    {"name": "Ben", "is_user": False, "mes": "Cold.", "swipe_id": 1, "swipes": ["Warm.", "Cold."]},
    {"name": "\x1b[2JEve\n", "is_user": False, "mes": "Dry."},
    {"name": " ", "is_user": False, "mes": "Who am I?"},
)


@pytest.fixture
def tree(tmp_path: Path) -> ConversationTree:
    (found,) = imported(tmp_path, "group.jsonl", LINES).trees
    return found


@pytest.fixture
def store() -> Iterator[ConversationStore]:
    opened = ConversationStore(None)
    yield opened
    opened.close()


def test_the_names_of_a_sillytavern_group_stand_over_its_messages(tree: ConversationTree) -> None:
    assert said_by(active_branch(tree)) == ["Ada", "Sam", "Ben", "[2JEve", None]
    assert [said_by([one])[0] for one in tree.messages if one.text in ("Warm.", "Cold.")] == ["Ben", "Ben"]


@pytest.mark.parametrize("form", ["md", "html", "openai", "jsonl"])
def test_every_file_names_who_speaks(tree: ConversationTree, form: Format, tmp_path: Path) -> None:
    text = written([tree], form)
    assert text.count("Ada") > 0
    assert text.count("Ben") > 0
    if form == "openai":
        names = [one.get("name") for one in json.loads(text)["messages"]]
        assert names == ["Ada", None, "Ben", "[2JEve", None]
    if form in ("openai", "jsonl"):
        (back,) = imported(tmp_path, f"again.{form}", text.encode()).trees
        assert said_by(active_branch(back))[::2] == ["Ada", "Ben", None]


def test_a_group_goes_into_our_file_and_comes_back_whole(store: ConversationStore, tmp_path: Path) -> None:
    members = (FrozenPersona("Ada", "Ada", "Sam", 0, greetings=("Come in.",)), FrozenPersona("Ben", "Ben", "Sam", 0))
    group = Group(members)
    ident = begin_group(store, group, scene="It rains.", settings={"values": {}, "speaks": "turn"}).id
    store.add_message(ident, "user", "Hi.")
    (back,) = imported(tmp_path, "a.jsonl", written([store.read_tree(ident)], "jsonl").encode()).trees
    branch = active_branch(back)
    assert group_of(branch) == group
    assert said_by(branch) == [None, "Ada", "Sam"]
    assert (branch[0].text, branch[0].settings) == ("It rains.", {"values": {}, "speaks": "turn"})


def test_a_group_of_the_same_names_takes_an_imported_chat_over(
    tree: ConversationTree, store: ConversationStore
) -> None:
    ident = store.write_tree(tree)
    members = (FrozenPersona("Ada", "Ada", "Sam", 0), FrozenPersona("Ben", "Ben", "Sam", 0))
    store.add_message(ident, "system", "", persona=Group(members).as_json(), change="group")
    engine = ScriptedEngine()
    engine.will_say("fox")
    list(answer(store, engine, ident, TurnOptions(GREEDY, template="plain"), speaker="Ben"))
    prompt = engine.decode(engine.requests[-1].prompt_ids, special=True)
    assert "Ada: Come in.\n\nSam: Hi." in prompt
    assert "Ben: Cold." not in prompt
    assert "[2JEve: Dry.\n\nAssistant: Who am I?" in prompt


def test_a_chat_of_sillytavern_comes_back_as_it_went_out(store: ConversationStore, tmp_path: Path) -> None:
    members = (FrozenPersona("Ada", "Ada", "Sam", 0, greetings=("Come in.",)), FrozenPersona("Ben", "Ben", "Sam", 0))
    ident = begin_group(store, Group(members), scene="It rains.").id
    note = {"text": "{{char}} is tired.", "depth": 2, "user": "Sam"}
    store.add_message(ident, "user", "Hi.", settings={"values": {}, "note": note})
    told = store.load(ident).branch[-1]
    record = AnswerRecord("tiny", "chatml", SamplingSettings(), None, "stop_token", thinking=THINK)
    for text in ("Cold.", "<think>Hm.</think>Warm."):
        begun = store.begin_answer(ident, told.id, speaker="Ben", record=record)
        store.close_answer(begun.id, text, (), "complete", record=record)
    tree = store.read_tree(ident)
    text = written([tree], "sillytavern")
    header, *messages = [json.loads(line) for line in text.splitlines()]
    assert (header["user_name"], header["character_name"]) == ("unused", "unused")
    assert header["chat_metadata"]["note_depth"] == 2
    assert [(one["name"], one["is_user"], one["mes"]) for one in messages] == [
        ("System", False, "It rains."),
        ("Ada", False, "Come in."),
        ("Sam", True, "Hi."),
        ("Ben", False, "Warm."),
    ]
    assert (messages[-1]["swipes"], messages[-1]["swipe_id"]) == (["Cold.", "Warm."], 1)
    assert messages[-1]["extra"] == {"model": "tiny", "reasoning": "Hm."}
    found = imported(tmp_path, "chat.jsonl", text)
    assert found.problems == ()
    back = active_branch(found.trees[0])
    assert [(one.role, one.text) for one in back] == [
        ("system", "It rains."),
        ("assistant", "Come in."),
        ("user", "Hi."),
        ("assistant", "Warm."),
    ]
    assert said_by(back) == [None, "Ada", "Sam", "Ben"]
    assert note_in(settings_of(back)) == Note("{{char}} is tired.", 2)
    # Its times are whole milliseconds.
    times = [one.created_at for one in tree.messages[1:3]]
    assert [one.created_at for one in back[1:3]] == pytest.approx(times, abs=2e-3)
    with pytest.raises(ExchangeError, match="a file of SillyTavern holds one chat, and these are 2; name one"):
        written([tree, tree], "sillytavern")


@given(trees())
def test_any_conversation_can_be_written_for_sillytavern(tree: ConversationTree) -> None:
    for line in written([tree], "sillytavern").splitlines():
        assert isinstance(json.loads(line), dict)

"""Who said what in a group goes into files, and comes out of those of other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.chat.exchange.branch import active_branch
from exlchat.chat.exchange.writing import Format, written
from exlchat.chat.model import ConversationTree
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.group import Group, begin_group, group_of
from exlchat.chat.speakers import said_by
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY
from tests.chat.exchange.trees import imported, json_lines
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

"""`exlchat personas` and `--persona`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.app.options import AppOptions
from exlchat.app.speaking import with_persona
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.opening import begin_conversation
from exlchat.chat.personas.persona import Example
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.prompt.ids import OPENER, prompt_messages
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from exlchat.config.layers import typed as given
from tests.chat.personas.test_card_files import asset_chunk, charx, png_card
from tests.chat.personas.test_card_files import contents as zip_contents
from tests.chat.personas.test_cards import DAMAGED, V2, V3


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home" / "config" / "personas"


@pytest.fixture
def card(tmp_path: Path) -> Path:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(V2))
    return file


def test_the_list_has_those_that_come_along_and_ones_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(parents=True)
    (home / "ada.toml").write_text('name = "Ada \\u001b[2J"\ndescription = "A librarian"\n')
    (home / "bad.toml").write_text("systm = 1\n")
    assert cli.main(["personas", "list"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "ada           Ada [2J: A librarian"
    assert len(shown.out.splitlines()) == 9
    assert "unknown key 'systm'; did you mean system?" in shown.err
    assert cli.main(["personas", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["shipped"] for one in listed] == [False, *[True] * 8]


def test_a_card_goes_in_and_comes_out_the_same(home: Path, card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["personas", "import", str(card)]) == 0
    assert capsys.readouterr().out == f"{home / 'seraphina.toml'} (character card V2, JSON)\n"
    out = card.parent / "out.json"
    assert cli.main(["personas", "export", "seraphina", str(out)]) == 0
    assert json.loads(out.read_text()) == V2
    picture = card.parent / "out.png"
    assert cli.main(["personas", "export", "Seraphina", str(picture)]) == 0
    assert cli.main(["personas", "import", str(picture), "--name", "again"]) == 0
    assert (home / "again.png").is_file()
    capsys.readouterr()
    assert cli.main(["personas", "show", "again", "--user", "Kim"]) == 0
    shown = capsys.readouterr().out
    assert "Seraphina is a guardian." in shown
    assert "Kim: Who are you?" in shown
    assert "lorebook: 1 entries" in shown


def test_nothing_is_overwritten_unless_it_is_asked_for(
    home: Path, card: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["personas", "import", str(card)]) == 0
    before = (home / "seraphina.toml").read_bytes()
    card.write_text(json.dumps(V3))
    assert cli.main(["personas", "import", str(card)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert (home / "seraphina.toml").read_bytes() == before
    assert cli.main(["personas", "import", str(card), "--force"]) == 0
    assert (home / "seraphina.toml").read_bytes() != before
    assert cli.main(["personas", "export", "coder", str(card)]) == 1
    assert json.loads(card.read_text()) == V3
    assert cli.main(["personas", "new", "seraphina"]) == 1


def test_one_damaged_file_does_not_stop_the_others(home: Path, card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = card.parent / "evil.charx"
    evil.write_bytes(DAMAGED["a way out"])
    assert cli.main(["personas", "import", str(evil), str(card), "--json"]) == 1
    shown = capsys.readouterr()
    assert [one["id"] for one in json.loads(shown.out)] == ["seraphina"]
    assert shown.err.count("\n") == 1
    assert "evil.charx" in shown.err
    assert [file.name for file in home.iterdir()] == ["seraphina.toml"]


def test_a_lorebook_of_its_own_is_taken_along(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lore = card.parent / "lore.json"
    lore.write_text('{"entries": [{"keys": ["a"], "content": "b"}, {"keys": ["c"], "content": "d"}]}')
    assert cli.main(["personas", "import", str(card), "--lorebook", str(lore)]) == 0
    capsys.readouterr()
    assert cli.main(["personas", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["lorebook_entries"] == 2


def test_a_new_persona_can_be_used_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["personas", "new", 'My "Butler"']) == 0
    assert capsys.readouterr().out == f"{home / 'my-butler.toml'}\n"
    assert cli.main(["personas", "show", 'my "butler"']) == 0
    assert 'You are My "Butler", talking with User.' in capsys.readouterr().out
    assert cli.main(["personas", "new", "second", "--from", "narrator"]) == 0
    assert cli.main(["personas", "show", "second", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out.split("\n", 1)[1])["frozen"]["greetings"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "codr"], 1, "did you mean coder?"),
        (["import", "/nowhere.png"], 1, "there is no such file"),
        (["export", "coder", "x.png", "--picture", "/nowhere.png"], 1, "/nowhere.png: there is no such file"),
        (["export", "coder", "x.png", "--picture", "/dev/zero"], 1, "/dev/zero: not a plain file"),
        (["import", "/"], 1, "/: not a plain file; give one"),
        (["export", "coder", "x.png", "--picture", __file__], 1, "test_personas.py: not a PNG file"),
        (["export", "coder", "x.gif"], 2, "must be one of png, json, charx, toml"),
        (["export", "coder", "x.png", "--card", "3"], 2, "a .png holds the card in both versions"),
        (["export", "coder", "x.toml", "--card", "2"], 2, "--card goes with .json and .charx; a .toml holds no card"),
        (["export", "coder", "x.json", "--picture", "y.png"], 2, "a .json holds no picture"),
        (["import", "a", "b", "--name", "c"], 2, "--name goes with one FILE"),
        (["dance"], 2, "invalid choice: 'dance'"),
        ([], 2, "COMMAND"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        got = cli.main(["personas", *arguments])
    except SystemExit as stopped:
        got = int(str(stopped.code))
    line = capsys.readouterr().err
    assert got == code
    assert line.count("\n") == 1
    assert said in line


def test_an_unknown_persona_is_one_line_before_any_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "--persona", "teecher", "hello"]) == 1
    assert "did you mean teacher?" in capsys.readouterr().err


def test_a_persona_knows_the_users_name_from_the_settings(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True)
    (home / "ada.toml").write_text('name = "Ada"\nsystem = "You talk with {{user}}."\n')
    (home.parent / "settings.toml").write_text('user_name = "Kim"\n')
    monkeypatch.setattr("sys.stdin", None)
    assert cli.main(["personas", "show", "ada"]) == 0
    assert "You talk with Kim." in capsys.readouterr().out
    assert cli.main(["ask", "guide", "Hello", "--persona", "ada", "--device", "cpu", "--max-tokens", "1"]) == 0
    (row,) = ConversationStore(paths.folders().conversations).list_conversations()
    assert ConversationStore(paths.folders().conversations).load(row.id).branch[0].text == "You talk with Kim."


def test_the_model_a_persona_is_meant_for_is_taken_where_it_is_here(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True)
    twin = tmp_path / "models" / "twin"
    shutil.copytree(paths.bundled_model(), twin)
    (home.parent / "settings.toml").write_text(f'model_folders = ["{twin.parent}"]\n')
    (home / "ada.toml").write_text('name = "Ada"\nmodel = "twin"\n')
    (home / "bo.toml").write_text('name = "Bo"\nmodel = "org/away"\n')
    monkeypatch.setattr("sys.stdin", None)
    rest = ["--device", "cpu", "--max-tokens", "1"]
    for words, model in (
        (["--persona", "ada", "Hello"], "twin"),
        (["guide", "Hello", "--persona", "ada"], "guide"),
        (["-m", "guide", "--persona", "bo", "Hello"], "guide"),
    ):
        assert cli.main(["ask", *words, "--jsonl", *rest]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out.splitlines()[0])["model"] == model, words
        assert shown.err == ""
    assert cli.main(["ask", "--persona", "bo", "Hello", *rest]) == 0
    assert "Bo is meant for another model: org/away: no such folder" in capsys.readouterr().err


ADA = FrozenPersona(
    "Ada",
    "Ada",
    "User",
    0,
    system="You are Ada.",
    greetings=("Hello.", "Hi."),
    examples=(Example("a?", "b."),),
    template="chatml",
    sampling=SamplingOverrides(temperature=0.2, top_k=7, max_tokens=50),
)


def test_what_is_typed_goes_before_the_persona() -> None:
    names = ("system", "template", "max_tokens", "temperature", "top_k", "top_p")
    alone = with_persona(AppOptions(None), ADA)
    assert [alone.given(name) for name in names] == [ADA.system_text, "chatml", 50, 0.2, 7, None]
    typed = AppOptions(None, layers=(given(system="S", template="plain", temperature=1.5, max_tokens=3),))
    mixed = with_persona(typed, ADA)
    assert [mixed.given(name) for name in names] == ["S", "plain", 3, 1.5, 7, None]


@pytest.mark.parametrize("system", ["You are Ada.", ""])
def test_a_conversation_on_disk_begins_with_the_greeting_and_its_alternatives(system: str) -> None:
    store = ConversationStore(None)
    begun = begin_conversation(store, ADA, system=system)
    assert [(one.role, one.text) for one in begun.branch if one.text] == [
        *([("system", system)] if system else []),
        ("assistant", "Hello."),
    ]
    assert begun.tip_id is not None
    if system:
        assert [one.text for one in store.alternatives(begun.tip_id)] == ["Hello.", "Hi."]
    assert store.list_conversations() == []
    store.add_message(begun.id, "user", "Who are you?")
    assert [one.title for one in store.list_conversations()] == ["Who are you?"]
    assert [(one.role, one.text) for one in prompt_messages(store.load(begun.id).branch)][-3:] == [
        ("user", OPENER),
        ("assistant", "Hello."),
        ("user", "Who are you?"),
    ]
    assert begin_conversation(store, ADA, greets=False).branch[-1].role == "system"


def png_of(tmp_path: Path, *chunks: tuple[bytes, bytes]) -> Path:
    file = tmp_path / "card.png"
    file.write_bytes(png_card(V3, *chunks))
    return file


def charx_of(tmp_path: Path, name: str = "card.charx") -> Path:
    file = tmp_path / name
    file.write_bytes(charx({"assets/a.png": b"a", "module.risum": b"m"}, V3))
    return file


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_files_of_a_card_lie_beside_the_persona_and_come_out_again(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["personas", "import", str(charx_of(tmp_path))]) == 0
    assert capsys.readouterr().err == "exlchat: card.charx: its lorebook has what is not followed: @@depth in 1 entry\n"
    assert names(home) == ["seraphina.assets.zip", "seraphina.toml"]
    assert zip_contents((home / "seraphina.assets.zip").read_bytes()) == {"assets/a.png": b"a", "module.risum": b"m"}
    persona = home / "seraphina.toml"
    before = persona.read_text()
    persona.write_text(re.sub("^greeting = .*$", 'greeting = "Edited."', before, flags=re.MULTILINE))
    out = tmp_path / "out.charx"
    assert cli.main(["personas", "export", "seraphina", str(out)]) == 0
    found = zip_contents(out.read_bytes())
    assert json.loads(found.pop("card.json")) == {**V3, "data": {**V3["data"], "first_mes": "Edited."}}
    assert found == {"assets/a.png": b"a", "module.risum": b"m"}
    assert cli.main(["personas", "export", "seraphina", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr()
    assert shown.err == "exlchat: seraphina.assets.zip is left out: only .charx and .png hold such files\n"
    assert cli.main(["personas", "show", "seraphina"]) == 0
    assert capsys.readouterr().out.endswith(f"\nfiles of its card: {home / 'seraphina.assets.zip'}\n")


def test_force_takes_away_what_belonged_to_the_card_before(
    home: Path, card: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = png_of(tmp_path, asset_chunk("chara-ext-asset_:0", b"zero"))
    assert cli.main(["personas", "import", str(picture)]) == 0
    assert names(home) == ["seraphina.assets.zip", "seraphina.png", "seraphina.toml"]
    # The same card in a persona file: an edited copy. What came with the card stays.
    copied = tmp_path / "copy.toml"
    assert cli.main(["personas", "export", "seraphina", str(copied)]) == 0
    assert cli.main(["personas", "import", str(copied), "--force"]) == 0
    assert len(names(home)) == 3
    capsys.readouterr()
    assert cli.main(["personas", "import", str(charx_of(tmp_path)), "--name", "seraphina", "--force"]) == 0
    assert capsys.readouterr().err == "exlchat: card.charx: its lorebook has what is not followed: @@depth in 1 entry\n"
    assert len(names(home)) == 3, "the same card in another container"
    assert cli.main(["personas", "import", str(card), "--force"]) == 0
    said = "exlchat: seraphina: seraphina.png and seraphina.assets.zip of the card before it removed\n"
    assert capsys.readouterr().err == said
    assert names(home) == ["seraphina.toml"]


@pytest.mark.parametrize("there", ["seraphina.assets.zip", "seraphina.png"])
def test_files_that_lie_there_are_not_taken_for_those_of_a_new_card(
    there: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir(parents=True)
    (home / there).write_bytes(b"somebody's")
    assert cli.main(["personas", "import", str(png_of(tmp_path))]) == 1
    assert f"{home / there} is there already" in capsys.readouterr().err
    assert names(home) == [there]
    assert (home / there).read_bytes() == b"somebody's"


def test_damaged_files_beside_a_persona_are_a_line_and_no_file(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["personas", "import", str(charx_of(tmp_path))]) == 0
    kept = home / "seraphina.assets.zip"
    kept.write_bytes(kept.read_bytes()[:-5])
    capsys.readouterr()
    for ending in ("charx", "png"):
        assert cli.main(["personas", "export", "seraphina", str(tmp_path / f"out.{ending}")]) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert "seraphina.assets.zip: the archive is cut off; import the card again with --force" in line
        assert not (tmp_path / f"out.{ending}").exists()
    assert cli.main(["personas", "export", "seraphina", str(tmp_path / "out.json")]) == 0


def test_a_copy_has_the_picture_and_the_files_of_the_card_too(home: Path, tmp_path: Path) -> None:
    assert cli.main(["personas", "import", str(png_of(tmp_path, asset_chunk("chara-ext-asset_:0", b"zero")))]) == 0
    assert cli.main(["personas", "new", "twin", "--from", "seraphina"]) == 0
    for ending in ("png", "assets.zip"):
        assert (home / f"twin.{ending}").read_bytes() == (home / f"seraphina.{ending}").read_bytes()

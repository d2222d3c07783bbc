"""`exlchat template`, from the command line to the output."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from exlchat import paths
from exlchat.chat.prompt.formats import FORMATS
from exlchat.chat.registry import id_for
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli.main import main
from exlchat.ui.terminal.exit_codes import ExitCode


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return paths.folders().templates


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert main(["template", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def guide_tokens(text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(paths.bundled_model() / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_the_list_has_every_format_and_the_users_own(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    home.mkdir(parents=True)
    (home / "mine.toml").write_text('[user]\nprefix = "Q"\n[assistant]\nprefix = "A"\n')
    (home / "bad.toml").write_text("x")
    text = said(capsys, "list")
    rows = json.loads(said(capsys, "list", "--json"))
    assert {one.name for one in FORMATS} | {"mine", "bad"} == {row["name"] for row in rows}
    for row in rows:
        assert row["name"] in text
    bad = next(row for row in rows if row["name"] == "bad")
    assert "is not TOML" in bad["problem"]


def test_show_prints_what_the_tokenizer_makes_of_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(said(capsys, "show", "--json"))
    assert shown["ids"] == guide_tokens(shown["text"])
    assert "".join(shown["tokens"]) == shown["text"]
    assert [one["role"] for one in shown["messages"]] == ["system", "user", "assistant", "user"]
    first = shown["messages"][0]
    assert shown["text"][first["start"] : first["end"]] == "Be brief."
    assert "".join(shown["tokens"][first["first_token"] : first["end_token"]]) == "Be brief."
    table = said(capsys, "show")
    assert shown["text"] in table
    for token in shown["ids"]:
        assert f" {token} " in table


def test_show_takes_messages_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi\x1b[31m"}]}]}))
    shown = json.loads(said(capsys, "show", "llama-3", "--messages", file, "--no-generation-prompt", "--json"))
    assert shown["text"] == "<s><|start_header_id|>user<|end_header_id|>\n\nHi\x1b[31m<|eot_id|>"
    assert "\x1b" not in said(capsys, "show", "llama-3", "--messages", file)


def test_show_takes_a_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    paths.ensure_folder(paths.folders().data)
    store = ConversationStore(paths.folders().conversations)
    conversation = store.create_conversation()
    pinned = store.create_conversation()
    store.add_message(pinned.id, "user", "older, and at the head of the list")
    store.pin_conversation(pinned.id, True)
    store.add_message(conversation.id, "user", "Which <|im_end|> key quits?")
    store.close()
    for wanted in (conversation.id, conversation.id[:8], "last"):
        shown = json.loads(said(capsys, "show", "chatml", "--conversation", wanted, "--json"))
        assert shown["text"].count("Which <|im_end|> key quits?") == 1
        assert shown["ids"].count(guide_tokens("<|im_end|>")[0]) == 1, "what is typed is no token"
    line = said(capsys, "show", "--conversation", "nobody", code=ExitCode.ERROR)
    assert "nobody" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("[]", "holds no list of messages"),
        ('[{"role": "user"}]', "message 1 lacks a role"),
        ('[{"role": "wizard", "content": "x"}]', "message 1 lacks a role"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "message 1 lacks a role"),
        ("\udcff", "is not UTF-8"),
    ],
    ids=range(7),
)
def test_what_holds_no_messages_is_said_in_one_line(
    content: str, part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "m.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    line = said(capsys, "show", "--messages", file, code=ExitCode.ERROR)
    assert part in line
    assert str(file) in line
    assert line.count("\n") == 1


def test_an_unknown_format_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean chatml?" in said(capsys, "show", "chatlm", code=ExitCode.ERROR)


def test_a_template_that_writes_half_a_character_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No text has one, and no tokenizer takes it."""
    file = tmp_path / "half.jinja"
    file.write_text("{{ '\\ud800' }}{% for m in messages %}{{ m.content }}{% endfor %}")
    printed = said(capsys, "show", str(file), code=1)
    assert printed.count("\n") == 1
    assert "tokenizer.json: cannot encode half a character (U+D800, character 0" in printed


def test_import_makes_a_format_and_replaces_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "Tavern.json"
    file.write_text(json.dumps({"input_sequence": "Q:", "output_sequence": "A:", "wrap": True}))
    target = home / "tavern.toml"
    assert said(capsys, "import", file).splitlines()[0] == str(target)
    before = target.read_text()
    assert json.loads(said(capsys, "show", "Tavern", "--json"))["text"].endswith("Q:\nWhat can you do?\nA:\n")
    file.write_text("instruction_template: 'changed {{ messages[0].content }}'\n")
    assert "is there already" in said(capsys, "import", file, code=ExitCode.ERROR)
    assert target.read_text() == before
    assert said(capsys, "import", file, "--force").splitlines()[0] == str(home / "tavern.jinja")
    assert not target.exists(), "a name means one file"
    assert json.loads(said(capsys, "show", "Tavern", "--json"))["text"] == "changed Be brief."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../evil", "evil"),
        ("a/b", "a-b"),
        (".hidden", "hidden"),
        ("x\ny", "x-y"),
        ("Mistral V2 & V3", "mistral-v2-v3"),
        ("$(touch no)", "touch-no"),
        ("Über 3.5", "über-3-5"),
        ("...", "format"),
    ],
)
def test_a_name_becomes_that_of_a_file_in_the_folder_as_of_a_preset(
    name: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("instruction_template: x\n")
    assert said(capsys, "import", file, "--name", name).splitlines()[0] == str(home / f"{expected}.jinja")
    assert [one.name for one in home.parent.rglob("*") if one.is_file()] == [f"{expected}.jinja"]
    assert id_for(name, "format") == expected, "as presets and personas are called"


@pytest.mark.parametrize("name", ["chatml", "ChatML", "model"])
def test_what_is_there_without_a_file_keeps_its_name(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("instruction_template: x\n")
    line = said(capsys, "import", file, "--name", name, code=ExitCode.ERROR)
    assert "is a built-in format; choose another with --name NAME" in line
    assert not home.exists()
    called = file.rename(tmp_path / f"{name}.yaml")
    assert said(capsys, "import", called).splitlines()[0] == str(home / f"{name.lower()}-text-generation-webui.jinja")


@pytest.mark.parametrize("name", ["Mistral V2 & V3", "ChatML", "-x; echo 'no'", "日本 語", "Alpaca"])
def test_the_hint_works_when_it_is_pasted(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps({"input_sequence": "Q:", "output_sequence": "A:", "wrap": True}))
    program, *words = shlex.split(said(capsys, "import", file).splitlines()[1])
    assert (program, words[0], len(words)) == ("exlchat", "--template", 2)
    assert main(["ask", *words, "-m", "guide", "--device", "cpu", "--max-tokens", "2", "Hi"]) == ExitCode.OK
    capsys.readouterr()
    (answered,) = json.loads(said(capsys, "show", "--conversation", "last", words[1], "--json"))["format"].splitlines()
    assert answered == words[1]
    # It is found by what it was called there, too.
    if not name.startswith("-"):
        assert json.loads(said(capsys, "show", name, "--json"))["text"].endswith("Q:\nWhat can you do?\nA:\n")
    for built_in in ("chatml", "alpaca"):
        assert "Q:" not in json.loads(said(capsys, "show", built_in, "--json"))["text"]


def test_what_is_followed_in_part_and_what_is_not_are_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "x.json"
    preset = {"input_sequence": "Q:", "output_sequence": "A:", "names_behavior": "always", "activation_regex": "/x/"}
    file.write_text(json.dumps(preset))
    assert main(["template", "import", str(file)]) == ExitCode.OK
    lines = capsys.readouterr().err.splitlines()
    assert "names_behavior always: names stand before texts where a persona speaks, and nowhere else" in lines[0]
    assert "left out, because our formats have no place for it: activation_regex" in lines[1]


@pytest.mark.parametrize(
    "template", ["{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}", "{% if %}", "{{ x.y.z }}"]
)
def test_a_template_that_cannot_be_used_is_not_imported(
    template: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(json.dumps({"instruction_template": template}))
    line = said(capsys, "import", file, code=ExitCode.ERROR)
    assert str(file) in line
    assert line.count("\n") == 1
    assert not home.exists()


def test_without_a_word_the_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["template"])
    assert ended.value.code == ExitCode.USAGE
    assert "list|show|import" in capsys.readouterr().err

"""`exlchat ask` holds its answer to what was asked, with the bundled guide; what cannot be is refused at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from exlchat.config.files import save_setting
from exlchat.paths import bundled_model
from tests.random_models import save_random_llama

SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": false}'
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", None)
    return tmp_path / "home"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs `exlchat ask` in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main(["ask", "-m", "guide", "--device", "cpu", *arguments, "How do I load a model?"])
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_the_answer_is_of_the_form_that_was_asked_for(ask: Any, tmp_path: Path) -> None:
    assert json.loads(ask("--schema", SCHEMA)[1])["a"] in ("x", "y")
    (tmp_path / "s.json").write_text(SCHEMA)
    assert json.loads(ask("--schema", str(tmp_path / "s.json"))[1])["a"] in ("x", "y")
    assert ask("--choice", "not at all", "--choice", "sure")[1] in ("not at all\n", "sure\n")
    (tmp_path / "g.lark").write_text('start: "a" "b"+ "c"\n')
    assert ask("--grammar", str(tmp_path / "g.lark"), "--max-tokens", "200")[1].startswith("ab")
    assert ask("--regex", "[0-9]{3}")[1].strip().isdecimal()


@pytest.mark.parametrize("several", [(), ("--answers", "2", "--temperature", "1"), ("--jsonl",)])
def test_what_of_a_schema_is_not_held_is_said_once_beside_the_answer(ask: Any, several: tuple[str, ...]) -> None:
    schema = '{"type": "string", "format": "file-path", "maxLength": 6}'
    code, out, err = ask("--schema", schema, *several)
    assert (code, err) == (0, "exlchat: the JSON schema: answers are not held to the format 'file-path' (the whole)\n")
    assert "file-path" not in out


def test_the_answer_begins_and_goes_on_as_was_asked(ask: Any, home: Path) -> None:
    code, out, err = ask("--begin", "Start exl", "--ban", "chat", "--max-tokens", "8")
    assert (code, err) == (0, "")
    assert out.startswith("Start exl")
    assert "chat" not in out.lower()
    store = ConversationStore(home / "data" / "conversations.db")
    (row,) = store.list_conversations()
    answer = store.load(row.id).branch[-1]
    store.close()
    assert answer.text == out.removesuffix("\n")
    assert answer.record is not None
    assert answer.record.speech.begin == "Start exl"


def test_tokens_are_told_with_their_chances(ask: Any) -> None:
    code, out, _ = ask("--jsonl", "--logprobs", "3", "--max-tokens", "6", "--no-save")
    events = [json.loads(line) for line in out.splitlines()]
    tokens = [token for event in events if event["type"] == "tokens" for token in event["tokens"]]
    assert code == 0
    assert len(tokens) == 6
    assert "".join(token["text"] for token in tokens).strip() == events[-1]["text"].strip()
    for token in tokens:
        assert token["logprob"] <= 0
        assert len(token["top"]) == 3
        # The guide answers greedily.
        assert token["rank"] == 1
        assert token["top"][0] == {key: token[key] for key in ("id", "text", "logprob")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--schema", "nothing-there.json"), "there is no such file"),
        (("--schema", '{"type": '), "the schema is no JSON"),
        (("--regex", "(unclosed"), "not a regex"),
        (("--schema", '{"type": "poem"}'), "schema"),
        (("--grammar", "start: ("), "grammar"),
        (("--choice", "a", "--regex", "b"), "not allowed with"),
        (("--choice", ""), "empty"),
        (("--ban", ""), "empty"),
        (("--min-tokens", "-1"), "--min-tokens"),
        (("--logprobs", "5"), "--jsonl"),
        (("--draft", "no-such-folder"), "no folder of a model"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_generated(
    ask: Any, home: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = ask(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    if (home / "data" / "conversations.db").exists():
        store = ConversationStore(home / "data" / "conversations.db")
        assert store.list_conversations() == []
        store.close()


def test_a_draft_model_of_another_vocabulary_is_refused_in_one_line(ask: Any, tmp_path: Path) -> None:
    for name in ("large", "small"):
        save_random_llama(tmp_path / name)
    code, out, err = ask("-m", str(tmp_path / "large"), "--draft", str(bundled_model()), "--no-save")
    assert (code, out) == (1, "")
    # Saving the models has written there as well.
    (line,) = [line for line in err.splitlines() if "exlchat: " in line]
    assert "cannot draft for large" in line
    code, out, err = ask(
        "-m", str(tmp_path / "large"), "--draft", str(tmp_path / "small"), "--no-save", "--max-tokens", "12", "--jsonl"
    )
    assert code == 0
    assert json.loads(out.splitlines()[-1])["stats"]["drafted"] > 0


def test_a_draft_model_of_the_settings_is_left_out_where_it_does_not_fit(ask: Any, tmp_path: Path) -> None:
    """Else no model of another family could be loaded."""
    save_random_llama(tmp_path / "large")
    save_setting("draft_model", str(bundled_model()))
    code, out, err = ask(
        "-m", str(tmp_path / "large"), "--no-save", "--max-tokens", "12", "--temperature", "0", "--jsonl"
    )
    assert code == 0
    assert json.loads(out.splitlines()[-1])["stats"]["new_tokens"] == 12
    (line,) = [line for line in err.splitlines() if "draft" in line]
    assert "exlchat: guide does not draft for large: token " in line

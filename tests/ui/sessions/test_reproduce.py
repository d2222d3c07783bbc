"""`exlchat sessions reproduce`: the bundled guide gives its answers again, and what has changed is said."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from tests.endless_model import save_endless_llama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def database(home: Path) -> Path:
    return home / "data" / "conversations.db"


class Shell:
    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        assert cli.main([str(word) for word in words]) == code
        captured = self._capfd.readouterr()
        self.err = captured.err
        return captured.out

    def answers(self) -> list[dict[str, Any]]:
        shown = json.loads(self("sessions", "show", "last", "--json"))
        return [one for one in shown["messages"] if one["role"] == "assistant"]


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr("sys.stdin", None)
    return Shell(capfd)


def ask(shell: Shell, *words: str) -> str:
    """An answer drawn so warm that nothing but the seed brings it back."""
    warm = ("--temperature", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--max-tokens", "20")
    return shell("ask", "-m", "guide", "--device", "cpu", *warm, *words)


def test_answers_come_out_token_for_token(shell: Shell) -> None:
    ask(shell, "How do I load a model?", "--system", "Be brief.", "--seed", "1")
    # Of this seed the last token is a piece of a word, which is drawn anew where the answer goes on.
    ask(shell, "-c", "last", "And a theme?", "--stop", "zzz", "--seed", "3")
    ask(shell, "-c", "last", "--continue")
    first, second = shell.answers()
    for one in (first, second):
        new = len(one["token_ids"]) - one["record"]["begun_tokens"]
        said = shell("sessions", "reproduce", one["id"][:12], "--device", "cpu")
        assert said == f"the same: {new} tokens of guide, seed {one['record']['stats']['seed']}\n"
    # Its last token was drawn anew.
    assert second["record"]["begun_tokens"] == 19
    assert len(second["record"]["healed"]) == 1


def test_another_answer_is_told_with_the_place_where_it_parts(shell: Shell, database: Path) -> None:
    ask(shell, "How do I load a model?", "--seed", "5")
    (answer,) = shell.answers()
    ids = answer["token_ids"]
    ids[7] = 1000 if ids[7] != 1000 else 1001
    with sqlite3.connect(database) as changed:
        packed = b"".join(one.to_bytes(4, "little") for one in ids)
        changed.execute("UPDATE message SET token_ids = ? WHERE id = ?", (packed, answer["id"]))
    changed.close()
    said = shell("sessions", "reproduce", answer["id"], code=1)
    assert said.startswith("another answer, from token 8 on; of 20 in the record, 20 now\n")
    assert f"id {ids[7]}: " in said.splitlines()[2]
    with sqlite3.connect(database) as changed:
        changed.execute("UPDATE message SET token_ids = ? WHERE id = ?", (packed[:28], answer["id"]))
    changed.close()
    assert shell("sessions", "reproduce", answer["id"], code=1).splitlines()[2].startswith("  recorded:  ends there: ")


def test_what_has_changed_since_is_one_line(shell: Shell, database: Path, home: Path, tmp_path: Path) -> None:
    other = save_endless_llama(tmp_path / "other")
    template = home / "config" / "templates" / "mine.jinja"
    template.parent.mkdir(parents=True)
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    ask(shell, "How do I load a model?", "--template", "mine")
    (answer,) = shell.answers()

    def refused(*words: str | Path) -> str:
        assert shell("sessions", "reproduce", *words, code=1) == ""
        assert shell.err.count("\n") == 1
        return shell.err

    assert shell("sessions", "reproduce", answer["id"]).startswith("the same")
    template.write_text(template.read_text().replace(": ", " "))
    assert "the prompt is no longer what the model saw; the format mine" in refused(answer["id"])
    template.unlink()
    assert "mine" in refused(answer["id"])
    assert f"this is an answer of guide, and {other} is another model" in refused(answer["id"], "-m", other)
    with closing(ConversationStore(database)) as store:
        question = store.message(answer["id"]).parent_id
        edited = store.edit(answer["id"], "By hand.").id
    assert question is not None
    assert "this is no answer" in refused(question)
    assert "was not kept" in refused(edited)
    with sqlite3.connect(database) as changed:
        changed.execute("UPDATE message SET record = replace(record, '\"guide\"', '\"gone-4.0bpw\"')")
    changed.close()
    assert "the model gone-4.0bpw of this answer is not in the library; give its folder" in refused(answer["id"])


def test_the_model_is_found_by_its_name(shell: Shell, tmp_path: Path, home: Path) -> None:
    models = tmp_path / "models"
    made = save_endless_llama(models / "endless")
    shell("ask", "-m", made, "--device", "cpu", "--max-tokens", "5", "hello")
    (answer,) = shell.answers()
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "settings.toml").write_text(f"model_folders = [{json.dumps(str(models))}]\n")
    assert shell("sessions", "reproduce", answer["id"], "--device", "cpu").startswith("the same: 5 tokens of endless")

"""`exlchat template show` of conversations: held against what an answer was asked, as its record has it."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from tests.endless_model import save_endless_llama


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", None)
    (tmp_path / "home" / "config" / "personas").mkdir(parents=True)
    return tmp_path / "home"


class Shell:
    def __init__(self, capfd: pytest.CaptureFixture[str], home: Path) -> None:
        self._capfd, self._home = capfd, home
        self.err = ""

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        assert cli.main([str(word) for word in words]) == code
        out, self.err = self._capfd.readouterr()
        return out

    def ask(self, *words: str) -> Message:
        """The answer."""
        self("ask", "-m", "guide", "--device", "cpu", "--max-tokens", "8", *words)
        return self.branch()[-1]

    def branch(self) -> Sequence[Message]:
        with self.store() as store:
            return store.load(store.list_conversations()[0].id).branch

    def store(self) -> Any:
        return closing(ConversationStore(self._home / "data" / "conversations.db"))

    def shown(self, *words: str | Path) -> Any:
        return json.loads(self("template", "show", *words, "--json"))


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str], home: Path) -> Shell:
    return Shell(capfd, home)


def record(message: Message) -> AnswerRecord:
    assert message.record is not None
    return message.record


def named(ids: Sequence[int]) -> str:
    """As `AnswerRecord.prompt_hash` is described."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


PIRATE = """
name = "Pirate"
system = "Talk like a pirate."
template = "llama-3"
thinking = false
[[lorebook.entries]]
keys = ["ship"]
content = "The ship is called Nelly."
"""


def test_a_conversation_is_shown_as_it_would_be_asked(shell: Shell, home: Path) -> None:
    (home / "config" / "personas" / "pirate.toml").write_text(PIRATE)
    shell.ask("Ahoy", "--persona", "pirate")
    with shell.store() as store:
        ident = store.list_conversations()[0].id
        store.add_message(ident, "user", "What of the ship?")
    shown = shell.shown("--conversation", "last")
    assert "Talk like a pirate." in shown["text"]
    assert "The ship is called Nelly." in shown["text"]
    assert shown["format"] == "llama-3"
    with shell.store() as store:
        assert store.load(ident).branch[-1].persona is None, "looking notes nothing"
    answered = shell.ask("-c", "last", "--retry")
    assert record(answered).prompt_hash == named(shown["ids"])
    assert shell.shown("chatml", "--conversation", "last")["format"] == "chatml"


def test_what_is_no_longer_seen_is_not_shown(shell: Shell, home: Path) -> None:
    (home / "config" / "settings.toml").write_text('context_policy = "drop"\n')
    shell.ask("long " * 100)
    context = ("--context", str(len(shell.shown()["ids"]) + 60))
    answered = shell.ask("-c", "last", "brief", *context)
    assert record(answered).seen_from is not None
    with shell.store() as store:
        ident = store.list_conversations()[0].id
        store.add_message(ident, "user", "more")
    shown = shell.shown("--conversation", ident)
    assert "long" not in shown["text"]
    assert record(shell.ask("-c", "last", "--retry", *context)).prompt_hash == named(shown["ids"])


def test_an_answer_is_shown_with_the_prompt_that_it_had(shell: Shell) -> None:
    first = shell.ask("How do I load a model?", "--system", "Be brief.")
    second = shell.ask("-c", "last", "And a theme?", "--template", "plain")
    third = shell.ask("-c", "last", "--continue", "--template", "plain")
    for answer, form in ((first, None), (second, "plain"), (third, "plain")):
        shown = shell.shown("--message", answer.id[:12])
        assert shell.err == ""
        assert named(shown["ids"]) == record(answer).prompt_hash
        assert shown["as_recorded"] is True
        assert shown["format"] == form or form is None
    last = shown["messages"][-1]
    begun = third.token_ids[: record(third).begun_tokens]
    assert tuple(shown["ids"][last["first_token"] : last["end_token"]]) == begun
    # The last token of what was said before was drawn anew, so it is not in the prompt.
    (healed,) = record(third).healed
    assert second.token_ids == (*begun, healed)
    said = shown["text"][last["start"] : last["end"]]
    assert said != second.text
    assert second.text.startswith(said)
    assert said.splitlines()[0] in shell("template", "show", "--message", third.id)


def test_a_prompt_that_is_another_now_is_said(shell: Shell, home: Path, tmp_path: Path) -> None:
    template = home / "config" / "templates" / "mine.jinja"
    template.parent.mkdir(parents=True)
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    answer = shell.ask("How do I load a model?", "--template", "mine")
    assert shell.shown("--message", answer.id)["as_recorded"] is True
    template.write_text(template.read_text().replace(": ", " "))
    shown = shell.shown("--message", answer.id)
    assert shown["as_recorded"] is False
    assert "the prompt is no longer what the model saw; the format mine" in shell.err
    assert shell.err.count("\n") == 1
    other = save_endless_llama(tmp_path / "other")
    shell("sessions", "list")
    assert shell.shown("--message", answer.id, "-m", other)["as_recorded"] is None
    assert "the answer is of guide, these are tokens of other" in shell.err


def test_what_has_no_prompt_is_one_line(shell: Shell) -> None:
    answer = shell.ask("Hello")
    for words, code, said in (
        (["--message", str(answer.parent_id)], 1, "this is no answer"),
        (["--message", "nobody"], 1, "there is no message 'nobody'"),
        (["chatml", "--message", answer.id], 2, "leave out NAME"),
        (["--message", answer.id, "--no-generation-prompt"], 2, "leave out NAME"),
    ):
        assert shell("template", "show", *words, code=code) == ""
        assert said in shell.err
        assert shell.err.count("\n") == 1


def test_an_empty_message_has_a_place_between_its_marks(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    said = [("user", ""), ("assistant", "  "), ("user", "x")]
    file.write_text(json.dumps([{"role": role, "content": text} for role, text in said]))
    shown = shell.shown("chatml", "--messages", file)
    for span, (role, text) in zip(shown["messages"], said, strict=True):
        assert shown["text"][: span["start"]].endswith(f"<|im_start|>{role}\n")
        assert shown["text"][span["start"] : span["end"]].strip() == text.strip()
        assert shown["text"][span["end"] :].startswith("<|im_end|>") or text
        assert "".join(shown["tokens"][: span["first_token"]]) == shown["text"][: span["start"]]
    assert shown["messages"][0]["first_token"] == shown["messages"][0]["end_token"]
    assert "changed by the format" not in shell("template", "show", "chatml", "--messages", file)

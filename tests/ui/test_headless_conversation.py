"""`exlchat ask -c`: prompts and answers in a conversation that is there, by the command line alone."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.model import Conversation
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.group import Group, begin_group
from exlchat.chat.personas.opening import persona_of
from exlchat.chat.speakers import char_of
from exlchat.chat.store.conversations import ConversationStore
from exlchat.cli import main as cli
from tests.endless_model import save_endless_llama

GREEDY = ["--temperature", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_endless_llama(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def ask(endless: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs `exlchat ask` in this process: exit code, stdout, stderr without the line about the model's template."""

    def run(*arguments: str, stdin: bytes = b"", tokens: int = 6) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(["ask", "-m", str(endless), *GREEDY, "--max-tokens", str(tokens), *arguments])
        out, err = capfd.readouterr()
        return code, out, "".join(f"{one}\n" for one in err.splitlines() if "no chat template of its own" not in one)

    return run


@pytest.fixture
def store(home: Path) -> Iterator[ConversationStore]:
    path = home / "data" / "conversations.db"
    path.parent.mkdir(parents=True)
    with closing(ConversationStore(path)) as opened:
        yield opened


def last(store: ConversationStore) -> Conversation:
    return store.load(max(store.list_conversations(), key=lambda one: one.updated_at).id)


def roles(conversation: Conversation) -> list[str]:
    return [one.role for one in conversation.branch]


def sessions(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["sessions", *words]) == 0
    return capfd.readouterr().out


def test_a_prompt_stands_at_the_tip_and_the_model_sees_what_was_said_before(ask: Any, store: ConversationStore) -> None:
    assert ask("first", "--system", "Be brief.")[0] == 0
    before = last(store)
    code, out, err = ask("-c", before.id[:10], "second", "--jsonl")
    assert (code, err) == (0, "")
    after = last(store)
    assert after.id == before.id
    assert len(store.list_conversations()) == 1
    assert after.branch[:3] == before.branch
    assert [(one.role, one.text) for one in after.branch[3:4]] == [("user", "second")]
    assert roles(after) == ["system", "user", "assistant", "user", "assistant"]
    start, *_, finished = (json.loads(line) for line in out.splitlines())
    assert start["conversation"] == before.id
    assert after.branch[-1].text == finished["text"]
    # The prompt holds all that was said: it is longer than the question by what stood before it.
    assert start["prompt_tokens"] > sum(len(one.token_ids) for one in before.branch) + len(before.branch)
    assert finished["stats"]["cached_tokens"] <= start["prompt_tokens"]


def test_last_is_the_conversation_that_was_written_last(ask: Any, store: ConversationStore) -> None:
    ask("first")
    ask("second")
    assert ask("-c", "last", stdin=b"third\n")[0] == 0
    assert [one.text for one in last(store).branch if one.role == "user"] == ["second", "third"]


def test_retry_puts_another_answer_beside_the_one_there(ask: Any, store: ConversationStore) -> None:
    ask("first")
    old = last(store).branch[-1]
    # Standard input of a script, which is no prompt here.
    code, out, _ = ask("-c", "last", "--retry", "--temperature", "5", "--seed", "4", stdin=b"not a prompt")
    assert code == 0
    conversation = last(store)
    assert roles(conversation) == ["user", "assistant"]
    new = conversation.branch[-1]
    assert [one.id for one in store.alternatives(new.id)] == [old.id, new.id]
    assert out.rstrip("\n") == new.text.rstrip("\n") != old.text.rstrip("\n")


def test_retry_answers_a_prompt_that_has_no_answer(ask: Any, store: ConversationStore) -> None:
    ident = store.create_conversation().id
    store.add_message(ident, "user", "anybody there?")
    assert ask("-c", ident, "--retry")[0] == 0
    assert roles(store.load(ident)) == ["user", "assistant"]


def test_continue_goes_on_where_an_answer_was_cut_and_prints_what_is_new(ask: Any, store: ConversationStore) -> None:
    whole = ask("first", tokens=12)[1]
    ask("first", tokens=6)
    cut = last(store).branch[-1]
    # The last token is drawn anew, among those that begin with its text.
    code, out, _ = ask("-c", "last", "--continue", tokens=7)
    assert code == 0
    longer = last(store).branch[-1]
    assert longer.edited_from == cut.id
    assert longer.text == cut.text + out.removesuffix("\n") == whole.removesuffix("\n")


def test_continue_goes_on_with_an_edited_answer(
    ask: Any, store: ConversationStore, capfd: pytest.CaptureFixture[str]
) -> None:
    ask("first")
    answer = last(store).branch[-1].id
    sessions(capfd, "edit", answer, "I would say")
    assert ask("-c", "last", "--continue")[0] == 0
    assert last(store).branch[-1].text.startswith("I would say")


def test_continue_of_an_answer_that_ended_is_refused_before_a_model_is_loaded(
    ask: Any, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exlchat.ui.headless.ask.engine_for", None)
    ident = store.create_conversation().id
    asked = store.add_message(ident, "user", "first")
    begun = store.begin_answer(ident, asked.id)
    store.close_answer(begun.id, "Done.", [1], "complete")
    assert ask("-c", ident, "--continue")[0::2] == (
        1,
        "exlchat: the last answer was not cut or edited; there is nothing to go on with\n",
    )
    empty = store.create_conversation("empty").id
    assert ask("-c", empty, "--retry")[0::2] == (
        1,
        "exlchat: there is nothing to answer in this conversation yet; give a prompt\n",
    )


def test_a_persona_takes_over_and_goes_on_speaking(ask: Any, store: ConversationStore, home: Path) -> None:
    folder = home / "config" / "personas"
    folder.mkdir(parents=True)
    (folder / "pirate.toml").write_text(
        'name = "Pirate"\nsystem = "Talk like a pirate."\ntemplate = "plain"\n[sampling]\nmax_tokens = 3\ntop_k = 7\n'
    )
    ask("first")
    assert ask("-c", "last", "--persona", "pirate", "second")[0] == 0
    conversation = last(store)
    assert roles(conversation) == ["user", "assistant", "system", "user", "assistant"]
    speaking = persona_of(conversation.branch)
    assert speaking is not None
    assert (speaking.name, conversation.system_prompt) == ("Pirate", "Talk like a pirate.")
    # Later, by itself: its format and its way of answering, but what is typed wins.
    assert ask("-c", "last", "third")[0] == 0
    record = last(store).branch[-1].record
    assert record is not None
    assert (record.persona, record.template, record.sampling.top_k) == ("Pirate", "plain", 7)
    assert record.stats is not None
    assert record.stats.new_tokens == 6
    # A plain system prompt sends it away, once.
    for _ in range(2):
        assert ask("-c", "last", "--system", "Be brief.", "fourth")[0] == 0
    conversation = last(store)
    assert roles(conversation).count("system") == 2
    record = conversation.branch[-1].record
    assert record is not None
    assert (record.persona, record.template == "plain", record.sampling.top_k == 7) == (None, False, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--retry"], "--retry needs the conversation"),
        (["--continue"], "--continue needs the conversation"),
        (["-c", "last", "--retry", "--continue"], "not allowed with argument"),
        (["-c", "last", "--retry", "why?"], "--retry takes no prompt; leave out 'why?'"),
        (["-c", "last", "--continue", "--persona", "coder"], "do not go with --continue"),
        (["-c", "last", "--retry", "--system", "x"], "do not go with --retry"),
        (["-c", "last", "--no-save", "why?"], "--no-save keeps nothing"),
        (["-c", "", "why?"], "the id is empty"),
    ],
)
def test_what_makes_no_sense_together_is_one_line(
    ask: Any, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ask(*words)
    assert ended.value.code == 2
    line = capfd.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_conversation_that_is_not_there_is_one_line_and_nothing_is_begun(
    ask: Any, store: ConversationStore, capfd: pytest.CaptureFixture[str]
) -> None:
    ask("first")
    ident = last(store).id
    code, out, err = ask("-c", "nobody", "why?")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "there is no conversation 'nobody'" in err
    sessions(capfd, "rm", ident)
    code, out, err = ask("-c", ident, "why?")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"exlchat sessions restore {ident[:8]}" in err
    assert len(store.load(ident).branch) == 2


def test_a_prompt_that_cannot_be_asked_leaves_the_conversation_as_it_was(
    ask: Any, store: ConversationStore, tmp_path: Path
) -> None:
    ask("first")
    before = last(store)
    assert ask("-c", "last", "word " * 400, "--context", "64")[0] == 3
    assert last(store).branch == before.branch
    refusing = tmp_path / "mine.jinja"
    refusing.write_text("{{ raise_exception('no questions today') }}")
    assert ask("-c", "last", "--system", "x", "second", "--template", str(refusing))[0] == 1
    assert last(store).branch == before.branch
    assert ask("-c", "last", "--retry", "--context", "4")[0] == 3
    assert last(store).branch == before.branch


def test_old_turns_are_left_out_where_the_policy_says_so(ask: Any, store: ConversationStore) -> None:
    alone = json.loads(ask("second", "--no-save", "--jsonl")[1].splitlines()[0])["prompt_tokens"]
    context = str(alone + 70)
    ask("first " * 100)
    assert ask("-c", "last", "second", "--context", context, "--context-policy", "stop")[0] == 3
    code, out, err = ask("-c", "last", "second", "--context", context, "--context-policy", "drop", "--jsonl")
    assert code == 0
    assert "2 earlier messages are no longer seen by the model" in err
    assert json.loads(out.splitlines()[0])["prompt_tokens"] == alone
    conversation = last(store)
    record = conversation.branch[-1].record
    assert record is not None
    assert record.seen_from == conversation.branch[2].id


# Two programs


def start(endless: Path, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "exlchat", "ask", "-m", str(endless), *GREEDY, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.DEVNULL, **streams)


def test_a_conversation_in_which_another_program_writes_an_answer_is_left_alone(
    store: ConversationStore, endless: Path
) -> None:
    program = start(endless, "hello")
    assert program.stdout is not None
    program.stdout.read(20)
    before = last(store)
    assert before.branch[-1].status == "streaming"
    for words in (["why?"], ["--retry"], ["--continue"]):
        other = start(endless, "-c", before.id, *words)
        out, err = other.communicate(timeout=60)
        assert (other.returncode, out) == (1, b"")
        assert err == b"exlchat: another program is writing an answer in this conversation; ask when it has ended\n"
    assert program.poll() is None
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60)[0]
    assert [one.status for one in last(store).branch] == ["complete", "partial"]
    other = start(endless, "-c", before.id, "--max-tokens", "4", "why?")
    other.communicate(timeout=60)
    assert other.returncode == 0
    assert roles(last(store)) == ["user", "assistant", "user", "assistant"]


def test_a_program_that_has_the_conversation_open_loses_nothing_and_neither_does_this_one(
    store: ConversationStore, endless: Path
) -> None:
    """What the app does: it holds the store open and writes below the tip of the moment."""
    ident = store.create_conversation().id
    asked = store.add_message(ident, "user", "first")
    store.close_answer(store.begin_answer(ident, asked.id).id, "Yes.", [], "complete")
    held = store.load(ident)
    program = start(endless, "-c", ident, "--max-tokens", "60000", "second")
    assert program.stdout is not None
    program.stdout.read(20)
    # Meanwhile the other one shows an older message again, and says something there.
    store.set_tip(ident, held.branch[-1].id)
    mine = store.add_message(ident, "user", "of the app")
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    tree = store.read_tree(ident)
    assert [one.text for one in store.load(ident).branch if one.role == "user"] == ["first", "of the app"]
    assert {one.text for one in tree.messages if one.role == "user"} == {"first", "second", "of the app"}
    answered = {one.parent_id for one in tree.messages if one.role == "assistant"}
    assert mine.id not in answered
    assert not any(one.status == "streaming" for one in tree.messages)
    assert store.check() == []


def test_a_database_that_another_program_holds_for_long_is_one_line(
    ask: Any, store: ConversationStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exlchat.chat.store import database

    ask("first")
    before = last(store)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    holder = sqlite3.connect(home / "data" / "conversations.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    code, out, err = ask("-c", before.id, "second")
    holder.close()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert last(store).branch == before.branch


# Group chats


def group(store: ConversationStore, **settings: object) -> str:
    members = (FrozenPersona("Ada", "Ada", "Sam", 0), FrozenPersona("Ben", "Ben", "Sam", 0))
    return begin_group(store, Group(members), settings={"values": {}, **settings}).id


def test_who_of_a_group_answers_is_whoever_is_named_or_given(ask: Any, store: ConversationStore) -> None:
    ident = group(store)
    assert ask("-c", ident, "Ben?")[0] == 0
    assert ask("-c", ident, "Ben?", "--speaker", "ada")[0] == 0
    assert ask("-c", ident, "--retry", "--temperature", "1")[0] == 0
    assert [char_of(one) for one in store.load(ident).branch if one.role == "assistant"] == ["Ben", "Ada"]
    assert len(store.read_tree(ident).messages) == 6


def test_where_it_is_not_settled_who_answers_a_line_says_so_and_nothing_is_written(
    ask: Any, store: ConversationStore
) -> None:
    chosen, plain = group(store, speaks="chosen"), store.create_conversation().id
    store.add_message(plain, "user", "Hi.")
    before = store.load(chosen).branch
    for words, line in (
        (("-c", chosen, "Ben?"), "you choose who speaks in this group, one of Ada, Ben"),
        (("-c", chosen, "Ben?", "--speaker", "Zoe"), "there is no Zoe in this group; there are Ada, Ben"),
        (("-c", plain, "Ben?", "--speaker", "Ada"), "no group speaks here"),
    ):
        code, out, err = ask(*words)
        assert (code, out) == (1, "")
        assert line in err
        assert len(err.splitlines()) == 1
    assert store.load(chosen).branch == before
    for words in (("Hi", "--speaker", "Ada"), ("-c", chosen, "--retry", "--speaker", "Ada")):
        with pytest.raises(SystemExit, match="2"):
            ask(*words)


def test_a_system_prompt_is_told_to_all_of_a_group(ask: Any, store: ConversationStore) -> None:
    ident = group(store)
    for question in ("Ben?", "And?"):
        assert ask("-c", ident, question, "--system", "It rains.")[0] == 0
    branch = store.load(ident).branch
    assert [one.text for one in branch if one.role == "system"] == ["", "It rains."]
    assert [char_of(one) for one in branch if one.role == "assistant"] == ["Ben", "Ada"]

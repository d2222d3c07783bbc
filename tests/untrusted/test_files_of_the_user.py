"""What the user gives or keeps, when it is no file: each command says so or goes on without it, and none waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.untrusted.no_files import NOT_PLAIN, sparse
from tests.untrusted.trials import Trials, trials

KINDS = {"fifo": NOT_PLAIN["fifo"], "endless": NOT_PLAIN["endless"], "sparse": sparse}

GIVEN = {
    "a card": ("personas", "import", "FILE"),
    "a lorebook": ("personas", "import", "CARD", "--lorebook", "FILE"),
    "a persona": ("ask", "hello", "--persona", "FILE"),
    "a preset": ("presets", "import", "FILE"),
    "a format": ("ask", "hello", "--template", "FILE"),
    "a format of another program": ("template", "import", "FILE"),
    "messages": ("template", "show", "--messages", "FILE"),
    "conversations": ("sessions", "import", "FILE"),
    "a schema": ("ask", "hello", "--schema", "FILE"),
    "a grammar": ("ask", "hello", "--grammar", "FILE"),
}
"""Commands that are given a file."""

KEPT = {
    "config/settings.toml": ("config", "show"),
    "config/themes/x.toml": ("themes", "list"),
    "config/personas/x.toml": ("personas", "list"),
    "config/presets/x.toml": ("presets", "list"),
    "config/templates/x.jinja": ("template", "list"),
    "data/conversations.db": ("sessions", "list"),
    "state/models.json": ("models",),
    "state/state.json": ("ask", "hello", "--max-tokens", "1", "--no-save"),
}
"""Files of the program's own folders, and a command that reads each."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    home = tmp_path_factory.mktemp("home")
    with trials(home, "ask", "hello", "--max-tokens", "1", "--no-save") as made:
        assert made.warm.code == 0, made.warm.err
        yield made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", GIVEN)
def test_a_file_that_is_given_is_refused_in_a_line(what: str, kind: str, ready: Trials, tmp_path: Path) -> None:
    file, card = tmp_path / "given.toml", tmp_path / "card.json"
    KINDS[kind](file)
    card.write_text('{"name": "Ann", "description": "d", "first_mes": "Hi"}')
    typed = [{"FILE": str(file), "CARD": str(card)}.get(word, word) for word in GIVEN[what]]
    trial = ready.run(*typed)
    assert trial.fault is None
    assert trial.code in (1, 2)
    assert ("larger than" if kind == "sparse" else "not a plain file") in trial.err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", KEPT)
def test_a_file_of_the_programs_own_stops_nothing(name: str, kind: str, ready: Trials) -> None:
    file = ready.home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    KINDS[kind](file)
    try:
        trial = ready.run(*KEPT[name])
    finally:
        file.unlink()
    assert trial.fault is None
    if name.startswith("config/") or (name.endswith(".db") and kind != "sparse"):
        assert ("larger than" if kind == "sparse" else "not a plain file") in trial.out + trial.err
    elif name.startswith("state/"):
        assert trial.code == 0


@pytest.mark.parametrize("command", ["check", "check --repair"])
@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_database_that_is_a_pipe_is_checked_without_waiting(command: str, ending: str, ready: Trials) -> None:
    database = ready.home / "data" / "conversations.db"
    database.parent.mkdir(parents=True, exist_ok=True)
    assert ready.run("sessions", "list").fault is None
    file = database.with_name(database.name + ending)
    file.unlink(missing_ok=True)
    NOT_PLAIN["fifo"](file)
    try:
        trial = ready.run("sessions", *command.split())
    finally:
        file.unlink()
    assert trial.fault is None
    assert "not a plain file" in trial.err

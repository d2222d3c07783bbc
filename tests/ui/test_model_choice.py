"""Which model a start of the program means, and what it says when the argument is no model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exlchat.app.library.choice import choose_model
from exlchat.llm.info import ModelError


def model_at(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return model_at(tmp_path / "package" / "guide")


def complaint(argument: str, bundled: Path) -> str:
    with pytest.raises(ModelError) as caught:
        choose_model(argument, last_used=None, bundled=bundled)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_nothing_said_means_the_model_used_last_else_the_guide(bundled: Path, tmp_path: Path) -> None:
    assert choose_model(None, last_used=None, bundled=bundled).path == bundled
    last = model_at(tmp_path / "last")
    choice = choose_model(None, last_used=last, bundled=bundled)
    assert (choice.path, choice.notice) == (last, None)


def test_a_last_model_that_is_gone_falls_back_to_the_guide_and_says_so(bundled: Path, tmp_path: Path) -> None:
    choice = choose_model(None, last_used=tmp_path / "gone", bundled=bundled)
    assert choice.path == bundled
    assert choice.notice is not None
    assert str(tmp_path / "gone") in choice.notice


def test_a_folder_is_taken_relative_to_here_and_to_home(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_at(tmp_path / "work" / "mine")
    assert choose_model("mine", last_used=None, bundled=bundled).path == model
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    assert choose_model("~/mine", last_used=None, bundled=bundled).path == model


def test_the_word_guide_is_the_bundled_model_unless_a_model_here_has_that_name(bundled: Path, tmp_path: Path) -> None:
    assert choose_model("guide", last_used=tmp_path, bundled=bundled).path == bundled
    (tmp_path / "work" / "guide").mkdir()  # a folder of that name that is no model changes nothing
    assert choose_model("guide", last_used=None, bundled=bundled).path == bundled
    (tmp_path / "work" / "guide" / "config.json").write_text("{}")
    assert choose_model("guide", last_used=None, bundled=bundled).path == tmp_path / "work" / "guide"


def test_a_missing_bundled_model_names_its_folder(bundled: Path) -> None:
    (bundled / "config.json").unlink()
    assert str(bundled) in complaint("guide", bundled)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("llama.Q4_K_M.gguf", "GGUF"),
        ("model.safetensors", "the folder it lies in"),
        ("pytorch_model.bin", "pickle"),
        ("notes.txt", "give the folder that holds config.json"),
    ],
)
def test_a_file_is_named_for_what_it_is(bundled: Path, file: str, said: str) -> None:
    Path(file).write_text("")
    assert said in complaint(file, bundled)


def test_a_hub_name_is_to_be_downloaded_first(bundled: Path) -> None:
    line = complaint("turboderp/Llama-3.2-1B-exl2", bundled)
    assert "exlchat pull turboderp/Llama-3.2-1B-exl2" in line


def test_a_question_in_place_of_a_model_is_sent_to_ask(bundled: Path) -> None:
    assert complaint("How do I load\na model?", bundled) == (
        'How do I load a model?: no such folder; if it is a question: exlchat ask "QUESTION"'
    )


@pytest.mark.parametrize("argument", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(bundled: Path, argument: str) -> None:
    assert "the name of the model is empty" in complaint(argument, bundled)


@pytest.mark.parametrize("argument", ["./turboderp/model", "models", "/no/such/model"])
def test_a_path_that_is_not_there_is_not_taken_for_a_hub_name(bundled: Path, argument: str) -> None:
    line = complaint(argument, bundled)
    assert "no such folder" in line
    assert "exlchat pull" not in line


def test_a_folder_without_a_model(bundled: Path) -> None:
    folder = Path("folder")
    folder.mkdir()
    assert "is empty" in complaint("folder", bundled)
    (folder / "readme.md").write_text("")
    assert "has no config.json" in complaint("folder", bundled)
    model_at(folder / "4.0bpw")
    assert str(folder / "4.0bpw") in complaint("folder", bundled)


def test_a_name_that_no_file_system_takes(bundled: Path) -> None:
    assert "cannot be read as a folder" in complaint("x" * 5000, bundled)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read(bundled: Path) -> None:
    Path("shut").mkdir(mode=0)
    assert "cannot be read" in complaint("shut", bundled)


def test_a_folder_of_the_hub_cache_is_its_newest_snapshot(bundled: Path, tmp_path: Path) -> None:
    root = tmp_path / "models--org--llama"
    model_at(root / "snapshots" / "abc")
    assert choose_model(str(root), last_used=None, bundled=bundled).path == root / "snapshots" / "abc"


def test_a_link_that_leads_nowhere_is_told_as_one(bundled: Path, tmp_path: Path) -> None:
    Path("link").symlink_to(tmp_path / "gone")
    assert f"is a link to {tmp_path / 'gone'}, which is not there" in complaint("link", bundled)


def test_a_folder_of_models_lists_them(bundled: Path, tmp_path: Path) -> None:
    model_at(tmp_path / "all" / "a")
    model_at(tmp_path / "all" / "b")
    assert "is a folder of 2 models (a, b); give one of them" in complaint(str(tmp_path / "all"), bundled)

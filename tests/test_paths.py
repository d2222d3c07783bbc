from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from exlchat import paths
from tests.chat.unprivileged import assert_unprivileged, public_folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_one_variable_puts_all_four_folders_under_one_roof(home: Path) -> None:
    where = paths.folders()
    for folder in (where.config, where.data, where.state, where.cache):
        assert folder.is_relative_to(home)
    assert len({where.config, where.data, where.state, where.cache}) == 4
    assert where.settings_file == where.config / "settings.toml"
    assert where.conversations == where.data / "conversations.db"
    assert where.themes == where.config / "themes"
    assert where.templates == where.config / "templates"


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG variables are Linux's")
def test_without_the_variable_the_platforms_own_folders_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EXLCHAT_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "k"))
    where = paths.folders()
    names = [folder.relative_to(tmp_path).as_posix() for folder in (where.config, where.data, where.state, where.cache)]
    assert names == ["c/exlchat", "d/exlchat", "s/exlchat", "k/exlchat"]


def test_a_tilde_and_a_relative_home_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXLCHAT_HOME", "here")
    assert paths.folders().data == tmp_path / "here" / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EXLCHAT_HOME", "~/there")
    assert paths.folders().data == tmp_path / "there" / "data"


def test_naming_folders_makes_nothing_and_making_one_keeps_others_out(home: Path) -> None:
    where = paths.folders()
    assert not home.exists()
    paths.ensure_folder(where.data)
    assert stat.S_IMODE(where.data.stat().st_mode) == 0o700


def test_a_file_in_a_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(paths.FolderError) as caught:
        paths.ensure_folder(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_may_not_be_made_is_named() -> None:
    def check() -> None:
        with pytest.raises(paths.FolderError, match=r"closed/data.*permission denied.*EXLCHAT_HOME"):
            paths.ensure_folder(folder / "closed" / "data")

    with public_folder() as folder:
        (folder / "closed").mkdir(mode=0o755)
        (folder / "closed").chmod(0o555)
        assert_unprivileged(check)


def test_atomic_write_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    paths.atomic_write(path, "one\r\nä")
    assert path.read_bytes() == "one\r\nä".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    paths.atomic_write(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["file.txt"]


def test_atomic_write_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    paths.atomic_write(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_no_crumbs() -> None:
    def check() -> None:
        with pytest.raises(paths.FolderError, match=r"file\.txt cannot be written \(permission denied\)"):
            paths.atomic_write(folder / "shut" / "file.txt", "new")

    with public_folder() as folder:
        (folder / "shut").mkdir()
        (folder / "shut" / "file.txt").write_text("old")
        (folder / "shut").chmod(0o555)
        assert_unprivileged(check)
        assert os.listdir(folder / "shut") == ["file.txt"]
        assert (folder / "shut" / "file.txt").read_text() == "old"


def test_shipped_data_lies_inside_the_package() -> None:
    package = Path(paths.__file__).parent
    assert paths.bundled_model().is_relative_to(package)
    assert (paths.shipped_themes() / "exlchat-dark.toml").is_file()

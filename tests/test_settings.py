from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat import paths, settings
from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.settings import Settings, SettingsError, load_settings, save_setting
from tests.chat.unprivileged import assert_unprivileged, public_folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_no_file_means_defaults_and_makes_none(file: Path) -> None:
    assert load_settings(file) == Settings()
    assert not file.exists()


def test_every_setting_has_its_kind() -> None:
    assert set(settings._KEYS) == {field.name for field in dataclasses.fields(Settings)}


def test_the_users_own_file_is_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    save_setting("theme", "exlchat-light")
    assert load_settings().theme == "exlchat-light"
    assert paths.folders().settings_file.is_file()


def test_all_keys_are_read(file: Path) -> None:
    file.write_text(
        'theme = "t"\ntemperature = 1\ntop_k = 40\ntop_p = 0.9\nmin_p = 0.1\nmax_tokens = 7\ntemplate = "chatml"\n'
        'system = "Be brief."\nsidebar = false\nkv_cache = "fp32"\ncontext = 512\n'
        'extension = false\nquantize_head = 8\ncontext_policy = "drop"\nmodel_folders = ["~/models"]\n'
        'user_name = "Kim"\ntitle_by = "first line"\n'
    )
    assert load_settings(file) == Settings(
        theme="t",
        temperature=1.0,
        top_k=40,
        top_p=0.9,
        min_p=0.1,
        max_tokens=7,
        template="chatml",
        system="Be brief.",
        sidebar=False,
        kv_cache="fp32",
        context=512,
        extension=False,
        quantize_head=8,
        context_policy="drop",
        model_folders=("~/models",),
        user_name="Kim",
        title_by="first line",
    )
    assert isinstance(load_settings(file).temperature, float)


def test_sampling_of_the_chat_floor_and_of_the_guide() -> None:
    assert Settings().sampling() == SamplingSettings(temperature=0.7, top_k=0, top_p=1.0, min_p=0.05)
    assert Settings().sampling(bundled_guide=True).greedy
    assert Settings(temperature=0.3).sampling(bundled_guide=True).temperature == 0.3


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("temprature = 1", ["'temprature'", "did you mean temperature?"]),
        ('model_folders = "~/models"', ["model_folders is '~/models'", "a list of texts"]),
        ('user_name = " "', ["user_name is ' '", "a name in one line"]),
        ('user_name = "a\\nb"', ["user_name is", "a name in one line"]),
        ('title_by = "me"', ["title_by is 'me'", "one of model, first line"]),
        ("model_folders = [1]", ["model_folders is [1]", "a list of texts"]),
        ("zzz = 1", ["'zzz'", "the keys are theme"]),
        ("temperature = true", ["temperature is True", "a number"]),
        ('top_k = "40"', ["top_k is '40'", "a whole number"]),
        ("top_k = 1.5", ["top_k is 1.5", "a whole number"]),
        ("sidebar = 1", ["sidebar is 1", "true or false"]),
        ("temperature = -1", ["temperature is -1.0"]),
        ("temperature = nan", ["temperature is nan"]),
        ("top_p = 0", ["top_p is 0.0"]),
        ("max_tokens = 0", ["max_tokens is 0", "at least 1"]),
        ("context = -5", ["context is -5"]),
        ('context_policy = "forget"', ["context_policy is 'forget'", "stop, drop, summarise"]),
        ("quantize_head = 5", ["quantize_head is 5", "4, 6, 8"]),
        ("quantize_head = true", ["quantize_head is True", "a whole number"]),
        ('kv_cache = "q5"', ["kv_cache is 'q5'", "auto, fp32, fp16, fp8, q8, q6, q4"]),
        ("cache_gb = 1e308", ["cache_gb is 1e+308", "at most 100000"]),
        ("cache_gb = 1" + "0" * 400, ["cache_gb has too many digits"]),
        ("disk_gb = 1e308", ["disk_gb is 1e+308", "from 0 to 100000"]),
        ("disk_gb = nan", ["disk_gb is nan"]),
        ("cache_tokens = 200000000000", ["cache_tokens is 200000000000", "at most 1000000000"]),
        ("cache_tokens = 4096\ncache_gb = 1", ["cache_gb and cache_tokens are both there", "keep one"]),
        ("[sampling]", ["'sampling'"]),
        ("theme = ", ["not TOML", "line 1"]),
    ],
)
def test_a_wrong_line_is_named_with_file_key_and_cure(file: Path, line: str, parts: list[str]) -> None:
    file.write_text(line + "\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(file), *parts):
        assert part in message


def test_a_file_that_is_not_utf8_is_named(file: Path) -> None:
    file.write_bytes(b'theme = "\xff"')
    with pytest.raises(SettingsError, match=r"settings\.toml: byte 9 is not UTF-8"):
        load_settings(file)


def test_a_folder_in_the_files_place_is_named(file: Path) -> None:
    file.mkdir()
    with pytest.raises(SettingsError, match=r"settings\.toml: cannot be read \(is a directory\)"):
        load_settings(file)


def test_saving_keeps_comments_and_order(file: Path) -> None:
    file.write_text("# mine\ntop_k = 5  # few\n\ntheme = 'a'\n")
    assert save_setting("theme", "b", file) == Settings(theme="b", top_k=5)
    assert file.read_text() == '# mine\ntop_k = 5  # few\n\ntheme = "b"\n'
    save_setting("theme", None, file)
    assert file.read_text().startswith("# mine\ntop_k = 5  # few\n")
    assert load_settings(file) == Settings(top_k=5)


@pytest.mark.parametrize(("key", "value"), [("nope", 1), ("nope", None), ("top_k", "x"), ("top_p", 3.0)])
def test_a_value_that_cannot_be_used_is_refused_before_the_file_is_touched(
    file: Path, key: str, value: settings.SettingValue
) -> None:
    file.write_text("top_k = 5\n")
    with pytest.raises(SettingsError, match=key):
        save_setting(key, value, file)
    assert file.read_text() == "top_k = 5\n"


def test_a_broken_file_is_never_overwritten(file: Path) -> None:
    file.write_text("theme = \n")
    with pytest.raises(SettingsError, match="not TOML"):
        save_setting("theme", "b", file)
    assert file.read_text() == "theme = \n"


def test_a_settings_file_that_may_not_be_written_is_named() -> None:
    def check() -> None:
        with pytest.raises(SettingsError, match=r"settings\.toml cannot be written"):
            save_setting("theme", "b", folder / "shut" / "settings.toml")

    with public_folder() as folder:
        (folder / "shut").mkdir()
        (folder / "shut").chmod(0o555)
        assert_unprivileged(check)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_saving(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("s") / "settings.toml"
    save_setting("system", text, path)
    assert load_settings(path).system == text
    assert tomllib.loads(path.read_text(encoding="utf-8")) == {"system": text}

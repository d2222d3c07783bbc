from __future__ import annotations

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat import paths
from exlchat.cli.chat import build_parser as chat_parser
from exlchat.config.files import (
    Reading,
    SettingsError,
    file_problems,
    load_settings,
    read_settings,
    save_setting,
    unknown_variables,
)
from exlchat.config.kinds import CONTROL_NAMES, OWN_KEYS, TomlValue
from exlchat.config.schema import GROUPS, SETTINGS, Settings
from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import SamplingSettings, order_with_last
from tests.chat.unprivileged import assert_unprivileged, public_folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_no_file_means_defaults_and_makes_none(file: Path) -> None:
    assert load_settings(file) == Settings()
    assert not file.exists()


def test_every_field_is_declared_and_its_default_is_of_its_kind() -> None:
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Settings)}
    for setting in SETTINGS.values():
        assert setting.group in GROUPS
        assert setting.help.endswith(".")
        if setting.optional:
            assert setting.unset
            setting.from_toml(setting.example)
        else:
            assert setting.from_toml(setting.kind.to_toml(setting.default)) == setting.default


@pytest.mark.parametrize("key", SETTINGS)
def test_a_value_goes_through_toml_and_through_text_unchanged(key: str) -> None:
    setting = SETTINGS[key]
    value = (("retry", ("ctrl+t", "f5")), ("new", ("f3",))) if key == "keys" else setting.default
    value = setting.example if value is None or value == () else value
    assert setting.from_text(setting.kind.to_text(value)) == value
    table = tomllib.loads(f"{key} = {setting.shown(value)}")
    assert setting.from_toml(table[key]) == value


def test_the_options_that_are_declared_exist() -> None:
    known = {name for action in chat_parser()._actions for name in action.option_strings}
    assert {option for setting in SETTINGS.values() for option in setting.options} <= known


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
    assert Settings().drawing() == SamplingSettings(temperature=0.7, top_k=0, top_p=1.0, min_p=0.05)
    assert Settings().drawing(bundled_guide=True).greedy
    assert Settings(temperature=0.3).drawing(bundled_guide=True).temperature == 0.3


def test_the_table_of_sampling_takes_every_control_that_is_no_key_of_its_own(file: Path) -> None:
    file.write_text("""
top_k = 40
[sampling]
xtc_probability = 0.5
dry_breakers = ["\\n"]
banned_tokens = [" delve", 42]
logit_bias = {" the" = -2}
order = ["min_p", "temperature"]
""")
    drawing = load_settings(file).drawing()
    assert drawing == SamplingSettings(
        temperature=0.7,
        top_k=40,
        min_p=0.05,
        xtc_probability=0.5,
        dry_breakers=("\n",),
        banned_tokens=(" delve", 42),
        logit_bias=((" the", -2.0),),
        order=order_with_last(["min_p", "temperature"]),
    )
    kind = SETTINGS["sampling"].kind
    table = load_settings(file).sampling
    # The same as typed, as in the environment, and as it is written.
    assert kind.from_text(kind.to_text(table)) == kind.from_toml(kind.to_toml(table)) == table
    assert set(CONTROL_NAMES) | set(OWN_KEYS) == set(CONTROLS)


def test_a_row_of_the_table_of_sampling_is_written_and_taken_out(file: Path) -> None:
    file.write_text("# mine\n[sampling]\n# warm\nskew = 0.2\n")
    save_setting("sampling.logit_bias", {" the": -2.0}, file)
    save_setting("sampling.xtc_probability", 0.5, file)
    wanted = {"skew": 0.2, "logit_bias": ((" the", -2.0),), "xtc_probability": 0.5}
    assert dict(load_settings(file).sampling) == wanted
    save_setting("sampling", {"xtc_probability": 0.4}, file)
    assert tomllib.loads(file.read_text()) == {"sampling": {"xtc_probability": 0.4}}
    assert file.read_text().startswith("# mine\n[sampling]\n# warm\n")
    save_setting("sampling.xtc_probability", None, file)
    assert load_settings(file).sampling == ()
    with pytest.raises(SettingsError, match="did you mean skew"):
        save_setting("sampling.skwe", 0.1, file)


def test_a_dynamic_temperature_in_the_file_is_for_the_guide_too(file: Path) -> None:
    file.write_text("[sampling]\ndynatemp_high = 1.5\n")
    assert load_settings(file).drawing(bundled_guide=True).steps == ("temperature", "min_p")


def test_an_environment_that_contradicts_the_file_is_named_and_left(file: Path) -> None:
    file.write_text("temperature = 0\ntop_k = 5\n")
    reading = read_settings(file, {"EXLCHAT_SAMPLING": "dynatemp_high = 1.5", "EXLCHAT_THEME": "mono"})
    assert reading.settings.drawing() == SamplingSettings(temperature=0.0, top_k=5, min_p=0.05)
    assert reading.settings.theme == "mono"
    (problem,) = reading.environment_problems
    assert "temperature 0 takes the likeliest token" in problem


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
        ('context_policy = "forget"', ["context_policy is 'forget'", "drop, summarise, stop"]),
        ("quantize_head = 5", ["quantize_head is 5", "4, 6, 8"]),
        ("quantize_head = true", ["quantize_head is True", "a whole number"]),
        ("cards = [0, -1]", ["cards is [0, -1]", "a list of numbers, each a whole number, at least 0"]),
        ("cards = [true]", ["cards is [True]", "a list of numbers"]),
        ('cards = "0,1"', ["cards is '0,1'", "a list of numbers"]),
        ("reserve = [-1.0]", ["reserve is [-1.0]", "a number of at least 0"]),
        ('kv_cache = "q5"', ["kv_cache is 'q5'", "auto, fp32, fp16, fp8, q8, q6, q4"]),
        ("cache_gb = 1e308", ["cache_gb is 1e+308", "at most 100000"]),
        ("cache_gb = 1" + "0" * 400, ["cache_gb has too many digits"]),
        ("disk_gb = 1e308", ["disk_gb is 1e+308", "at least 0 and at most 100000"]),
        ("disk_gb = nan", ["disk_gb is nan"]),
        ("cache_tokens = 200000000000", ["cache_tokens is 200000000000", "at most 1000000000"]),
        ("cache_tokens = 4096\ncache_gb = 1", ["cache_gb and cache_tokens are both there", "keep one"]),
        ("[sampler]", ["'sampler'", "did you mean sampling?"]),
        ("[sampling]\nxtc_treshold = 0.1", ["sampling cannot be taken", "did you mean xtc_threshold?", "(line 1)"]),
        ("[sampling]\ntop_k = 4", ["sampling has top_k, which is a key of its own"]),
        ("[sampling]\nskew = 9", ["skew is 9; it must be a number from -5 to 5 (0 is off)"]),
        ("sampling = 5", ["sampling is 5; it must be a table of sampling controls"]),
        ("temperature = 0\n[sampling]\ndynatemp_high = 2", ["temperature 0 takes the likeliest token", "(line 2)"]),
        ("theme = ", ["not TOML", "line 1"]),
        ("context = 1" + "0" * 5000, ["not TOML"]),
        ("context = 0x1" + "0" * 5000, ["context is a number of thousands of digits"]),
        ("x = " + "[" * 20000 + "]" * 20000, ["not TOML", "nested too deep"]),
        ("[keys]\nretry = 5", ["keys is 5", "a table of actions"]),
        ('keys = "ctrl+t"', ["keys is 'ctrl+t'", "a table of actions"]),
        ("\n# a\nsystem = '''a\ntop_k = 1\n'''\n\n# b\ntop_k = -1", ["top_k is -1", "(line 8)"]),
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
    with pytest.raises(SettingsError, match=r"settings\.toml: not a plain file"):
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
    file: Path, key: str, value: TomlValue
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


# The environment


def reading(file: Path, **variables: str) -> Reading:
    return read_settings(file, {f"EXLCHAT_{name}": value for name, value in variables.items()})


def test_the_environment_beats_the_file_key_by_key(file: Path) -> None:
    file.write_text('theme = "a"\ntop_k = 5\nsidebar = true\nmodel_folders = ["/m"]\n')
    found = reading(
        file, THEME="b", SIDEBAR="off", TEMPERATURE="0", MODEL_FOLDERS="/x:~/y", KEYS="retry=ctrl+t,f5 new=f3"
    )
    assert found.settings == Settings(
        theme="b",
        top_k=5,
        sidebar=False,
        temperature=0.0,
        model_folders=("/x", "~/y"),
        keys=(("retry", ("ctrl+t", "f5")), ("new", ("f3",))),
    )
    assert [found.held.source(key) for key in ("theme", "top_k", "min_p")] == ["environment", "file", "default"]
    assert found.environment.values.keys() == {"theme", "sidebar", "temperature", "model_folders", "keys"}


def test_none_in_the_environment_takes_a_value_away_and_nothing_leaves_it(file: Path) -> None:
    file.write_text('template = "chatml"\nmax_tokens = 5\n')
    assert reading(file, TEMPLATE="none", MAX_TOKENS="").settings == Settings(max_tokens=5)


def test_the_one_cache_size_of_the_environment_replaces_whichever_the_file_has(file: Path) -> None:
    file.write_text("cache_tokens = 4096\n")
    assert reading(file, CACHE_GB="2").settings == Settings(cache_gb=2.0)
    both = reading(file, CACHE_GB="2", CACHE_TOKENS="512")
    assert both.settings == Settings(cache_tokens=4096)
    assert "EXLCHAT_CACHE_TOKENS and EXLCHAT_CACHE_GB are both there" in both.environment_problems[0]


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("TOP_K", "many", ["EXLCHAT_TOP_K is 'many'", "a whole number"]),
        ("TEMPERATURE", "warm", ["EXLCHAT_TEMPERATURE is 'warm'", "a number", "or none"]),
        ("TOP_P", "0", ["top_p is 0.0", "above 0"]),
        ("SIDEBAR", "maybe", ["EXLCHAT_SIDEBAR is 'maybe'", "true or false"]),
        ("KV_CACHE", "q5", ["EXLCHAT_KV_CACHE is 'q5'", "auto, fp32"]),
        ("KEYS", "retry", ["EXLCHAT_KEYS is 'retry'", "retry=ctrl+t"]),
    ],
)
def test_a_wrong_variable_is_named_and_the_file_holds(file: Path, name: str, value: str, parts: list[str]) -> None:
    file.write_text("top_k = 7\n")
    found = reading(file, **{name: value})
    assert found.settings == Settings(top_k=7)
    (line,) = found.environment_problems
    assert "\n" not in line
    for part in parts:
        assert part.lower() in line.lower()


def test_load_settings_refuses_a_wrong_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_TOP_K", "many")
    with pytest.raises(SettingsError, match="EXLCHAT_TOP_K is 'many'"):
        load_settings(file)


def test_unknown_variables_are_named_with_the_nearest_one() -> None:
    lines = unknown_variables({"EXLCHAT_HOME": "/x", "EXLCHAT_THEME": "a", "EXLCHAT_TEMPRATURE": "1", "OTHER": "1"})
    assert lines == ["the environment variable EXLCHAT_TEMPRATURE is no setting; did you mean EXLCHAT_TEMPERATURE?"]


# The file


def test_all_that_is_wrong_is_named_with_its_line(file: Path) -> None:
    file.write_text('# mine\nthem = "a"\n\ntop_k = -1\nmodel_folders = [\n 1,\n]\nmin_p = 2\n')
    first, second, third, fourth = file_problems(file)
    assert "did you mean theme? (line 2)" in first
    assert second.endswith("(line 4)")
    assert third.endswith("(line 5)")
    assert fourth.endswith("(line 8)")


def test_a_broken_file_is_not_used_at_all_but_the_environment_is(file: Path) -> None:
    file.write_text("top_k = 5\nmin_p = 7\n")
    found = reading(file, THEME="b")
    assert found.settings == Settings(theme="b")
    assert "min_p is 7" in found.file_problems[0]


def test_keys_are_saved_one_by_one(file: Path) -> None:
    file.write_text("# mine\n[keys]\n# and these\nnew = 'f3'\n")
    save_setting("keys.retry", ["ctrl+t", "f5"], file)
    save_setting("theme", "b", file)
    assert load_settings(file) == Settings(theme="b", keys=(("new", ("f3",)), ("retry", ("ctrl+t", "f5"))))
    save_setting("keys.new", None, file)
    assert load_settings(file).keys == (("retry", ("ctrl+t", "f5")),)
    assert "# and these" in file.read_text()


def test_a_value_takes_the_place_below_its_comment(file: Path) -> None:
    file.write_text('# The colours.\n# theme = "x"\n\n# Others.\n# top_k = 0\n\n# [keys]\n')
    save_setting("top_k", 4, file)
    save_setting("theme", "b", file)
    assert file.read_text() == (
        '# The colours.\n# theme = "x"\ntheme = "b"\n\n# Others.\n# top_k = 0\ntop_k = 4\n\n# [keys]\n'
    )


def test_a_comment_inside_a_text_is_no_place(file: Path) -> None:
    file.write_text('system = """\n# top_k = 0\n"""\n')
    assert save_setting("top_k", 4, file) == Settings(system="# top_k = 0\n", top_k=4)


def test_keys_that_are_no_table_are_not_written_into(file: Path) -> None:
    file.write_text('keys = "ctrl+t"\n')
    with pytest.raises(SettingsError, match="keys is no table; exlchat config unset keys"):
        save_setting("keys.retry", "f5", file)
    assert save_setting("keys", None, file) == Settings()


@pytest.mark.parametrize(("key", "value"), [("system", "a\udcff"), ("model_folders", ["a\udcff"])])
def test_bytes_that_are_no_text_are_refused(file: Path, key: str, value: TomlValue) -> None:
    with pytest.raises(SettingsError, match=f"{key} has bytes that are no UTF-8"):
        save_setting(key, value, file)
    assert not file.exists()


def test_what_is_unknown_can_be_taken_out(file: Path) -> None:
    file.write_text('themee = "a"\ntop_k = 5\n')
    assert save_setting("themee", None, file) == Settings(top_k=5)
    assert file.read_text() == "top_k = 5\n"


def test_settings_are_imported_without_torch_and_textual() -> None:
    code = "import sys, exlchat.config.files; print([m for m in ('textual', 'torch', 'tomlkit') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

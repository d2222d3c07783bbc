"""The command line beats the environment, and that beats the file: for every setting that has an option."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from exlchat import paths
from exlchat.app.library.memory import ModelMemory, ModelSettings
from exlchat.app.runtime import model_loading
from exlchat.app.services import Services, open_services
from exlchat.cli import main as cli
from exlchat.cli.chat import build_parser as chat_parser
from exlchat.cli.typed_options import app_options
from exlchat.config.files import save_setting
from exlchat.config.schema import SETTINGS
from exlchat.llm.info import ModelError
from tests.ui.app_harness import drawn
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", None)
    return tmp_path / "home"


Loaded = Callable[[Services], Any]


def loading(name: str) -> Loaded:
    """What the model would be loaded with."""

    def value(services: Services) -> Any:
        seen: dict[str, Any] = {}

        def load_model(_: Path, **wanted: Any) -> None:
            seen.update(wanted)
            raise ModelError("seen")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model_loading, "load_model", load_model)
            # Without a card, settings say nothing of cards.
            patch.setattr(model_loading, "_on_gpu", lambda _: True)
            with pytest.raises(ModelError, match="seen"):
                services.load_engine(lambda _: None)
        sizes = seen["cache_sizes"]
        usual = seen["usual_head"] if seen["quantize_head"] is None else seen["quantize_head"]
        sizes_by_name = {"cache_tokens": sizes.tokens, "cache_gb": sizes.gigabytes, "disk_gb": sizes.disk_gigabytes}
        return {**seen, **sizes_by_name, **asdict(seen["cards"]), "quantize_head": usual}[name]

    return value


# Key: values of the file, the environment and the command line; where the app finds what holds.
ORDER: dict[str, tuple[tuple[Any, Any, Any], tuple[str, ...], Loaded]] = {
    "theme": (("a", "exlchat-light", "exlchat-dark"), ("--theme", "exlchat-dark"), lambda s: s.theme),
    "temperature": ((0.1, 0.2, 0.0), ("--temperature", "0"), lambda s: drawn(s).sampling.temperature),
    "top_k": ((5, 6, 0), ("--top-k", "0"), lambda s: drawn(s).sampling.top_k),
    "top_p": ((0.1, 0.2, 1.0), ("--top-p", "1"), lambda s: drawn(s).sampling.top_p),
    "min_p": ((0.1, 0.2, 0.0), ("--min-p", "0"), lambda s: drawn(s).sampling.min_p),
    "sampling": (
        ((("skew", 0.1),), (("skew", 0.2), ("top_a", 0.1)), (("skew", 0.3),)),
        ("--sample", "skew=0.3"),
        lambda s: tuple((name, drawn(s).value(name)) for name in ("skew", "top_a") if drawn(s).value(name)),
    ),
    "max_tokens": ((5, 6, 7), ("--max-tokens", "7"), lambda s: drawn(s).max_tokens),
    "draft": (("off", "ngram", "auto"), ("--draft", "auto"), lambda s: drawn(s).speech.draft),
    "draft_model": (
        ("/a", "/b", str(paths.bundled_model())),
        ("--draft", str(paths.bundled_model())),
        # The guide itself is loaded without one.
        lambda s: str(model_loading.draft_path(Path("/large"), s.shelf.options, s.shelf.held(Path("/large")))),
    ),
    "template": (("plain", "chatml", "model"), ("--template", "model"), lambda s: s.defaults.held.value("template")),
    "system": (("a", "b", ""), ("--system", ""), lambda s: s.defaults.system),
    "context_policy": (
        ("drop", "summarise", "stop"),
        ("--context-policy", "stop"),
        lambda s: drawn(s).context_policy,
    ),
    "context": ((500, 600, 700), ("--context", "700"), loading("context")),
    "kv_cache": (("q8", "q4", "auto"), ("--kv-cache", "auto"), loading("kv_cache")),
    "extension": ((True, False, True), ("--ext",), loading("extension")),
    "cards": (((0,), (1, 0), (0, 1)), ("--cards", "0,1"), loading("cards")),
    "reserve": (((1.0,), (1.0, 2.5), (0.0,)), ("--reserve", "0"), loading("reserve")),
    "host_layers": ((4, 0, 32), ("--host-layers", "32"), loading("host_layers")),
    "quantize_head": ((4, 6, 8), ("--quantize-head", "8"), loading("quantize_head")),
    "cache_tokens": ((512, 1024, 2048), ("--cache-tokens", "2048"), loading("cache_tokens")),
    "cache_gb": ((1.0, 2.0, 3.0), ("--cache-gb", "3"), loading("cache_gb")),
    "disk_gb": ((1.0, 2.0, 0.0), ("--disk-gb", "0"), loading("disk_gb")),
}


def services(*arguments: str) -> Services:
    parser = chat_parser()
    typed = parser.parse_args(["guide", *arguments])
    options = app_options(parser, typed, "guide", theme=typed.theme)
    return open_services(options)


def test_every_setting_with_an_option_is_here() -> None:
    assert ORDER.keys() == {key for key, one in SETTINGS.items() if one.options}


@pytest.mark.parametrize("key", ORDER)
def test_the_command_line_beats_the_environment_and_that_the_file(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (file, environment, typed), arguments, holds = ORDER[key]
    kind = SETTINGS[key].kind
    save_setting(key, kind.to_toml(file))
    if key == "theme":
        themes = paths.folders().themes
        themes.mkdir()
        (themes / "a.toml").write_text("dark = true\n")
    assert holds(services()) == file
    monkeypatch.setenv(SETTINGS[key].variable, kind.to_text(environment))
    assert holds(services()) == environment
    found = services(*arguments)
    # Of the table of sampling, value by value.
    assert holds(found) == (typed if key != "sampling" else (*typed, ("top_a", 0.1)))
    assert found.shelf.options.given(key) == typed
    assert services().shelf.options.given(key) is None


@pytest.mark.parametrize(
    ("key", "file", "remembered", "environment"),
    [
        ("context", 500, 600, 700),
        ("kv_cache", "q8", "q4", "fp8"),
        ("template", "plain", "chatml", "llama3"),
        ("system", "a", "b", "c"),
    ],
)
def test_what_is_remembered_for_a_model_stands_between_file_and_environment(
    key: str, file: Any, remembered: Any, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_setting(key, file)
    ModelMemory(paths.folders().model_memory).keep(paths.bundled_model(), ModelSettings(**{key: remembered}))
    held = services().shelf.held(paths.bundled_model())
    assert (held.value(key), held.source(key)) == (remembered, "remembered")
    monkeypatch.setenv(SETTINGS[key].variable, str(environment))
    held = services().shelf.held(paths.bundled_model())
    assert (held.value(key), held.source(key)) == (environment, "environment")


def test_ask_goes_by_the_same_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    engine, seen = ScriptedEngine("Yes.", "Yes."), []

    def load_model(_: Path, **wanted: Any) -> ScriptedEngine:
        seen.append(wanted["context"])
        return engine

    monkeypatch.setattr(model_loading, "load_model", load_model)
    save_setting("top_k", 5)
    save_setting("context", 500)
    monkeypatch.setenv("EXLCHAT_TOP_K", "6")
    monkeypatch.setenv("EXLCHAT_CONTEXT", "600")
    monkeypatch.setenv("EXLCHAT_TOPK", "6")
    assert cli.main(["ask", "-m", "guide", "--no-save", "a?"]) == 0
    assert cli.main(["ask", "-m", "guide", "--no-save", "a?", "--top-k", "7", "--context", "700"]) == 0
    assert [one.sampling.top_k for one in engine.requests] == [6, 7]
    assert seen == [600, 700]
    assert "EXLCHAT_TOPK is no setting; did you mean EXLCHAT_TOP_K?" in capsys.readouterr().err


def test_ask_refuses_a_wrong_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EXLCHAT_TOP_K", "many")
    assert cli.main(["ask", "-m", "guide", "--no-save", "a?"]) == 1
    assert "EXLCHAT_TOP_K is 'many'; it must be a whole number" in capsys.readouterr().err


def test_the_app_starts_with_a_wrong_or_unknown_variable_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_TOP_K", "many")
    monkeypatch.setenv("EXLCHAT_TOPP", "1")
    save_setting("top_k", 5)
    found = services()
    assert drawn(found).sampling.top_k == 5
    assert any("EXLCHAT_TOP_K is 'many'" in line and line.endswith("it is ignored") for line in found.notices)
    assert any("EXLCHAT_TOPP is no setting; did you mean EXLCHAT_TOP_P?" in line for line in found.notices)

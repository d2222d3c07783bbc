"""With or without the CUDA kernels: what was typed, what was set, and what the engine is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exlchat import engine, paths
from exlchat.app.options import AppOptions, DeviceChoice
from exlchat.app.runtime.jobs import Loaded
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.app.runtime.model_state import ModelState
from exlchat.app.services import open_services
from exlchat.cli import main as cli
from exlchat.cli import typed_options
from exlchat.config.files import read_settings, save_setting
from exlchat.config.layers import Layer, resolve
from exlchat.config.layers import typed as given
from exlchat.llm.cards import CardWishes
from exlchat.llm.info import ModelError
from tests.chat.scripted_engine import ScriptedEngine
from tests.random_models import save_random_llama

TYPED_AND_SET = [(None, None, True), (None, False, False), (True, False, True), (False, True, False)]


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine's `load` was called with."""
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    calls: list[dict[str, Any]] = []

    def load(_path: Path, **options: Any) -> None:
        calls.append(options)
        raise ModelError("far enough")

    # `exlchat.engine` resolves the name on first use, so there may be nothing yet to replace.
    monkeypatch.setattr(engine, "load", load, raising=False)
    monkeypatch.setattr("sys.stdin", None)
    return calls


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.mark.parametrize(("typed", "setting", "used"), TYPED_AND_SET)
def test_in_the_app(
    typed: bool | None, setting: bool | None, used: bool, model: Path, asked: list[dict[str, Any]]
) -> None:
    save_setting("extension", setting)
    with pytest.raises(ModelError):
        open_services(AppOptions(model, "cpu", (given(extension=typed),))).load_engine(lambda _: None)
    assert [call["extension"] for call in asked] == [used]
    assert asked[0]["build_cache"] == paths.folders().cache


@pytest.mark.parametrize(("typed", "setting", "used"), TYPED_AND_SET)
def test_in_pipe_mode(
    typed: bool | None, setting: bool | None, used: bool, model: Path, asked: list[dict[str, Any]]
) -> None:
    save_setting("extension", setting)
    option = {None: [], True: ["--ext"], False: ["--no-ext"]}[typed]
    assert cli.main(["ask", "--no-save", "--device", "cpu", *option, "-m", str(model), "Hello"]) == 1
    assert [call["extension"] for call in asked] == [used]


# What was typed, what was set, whether there are kernels, and what the engine is asked for. What was typed reaches the
# engine in any case, which says why it cannot be; a setting is for starts that have kernels.
HEADS = [
    (None, None, True, None),
    (6, None, True, 6),
    (None, 8, True, 8),
    (4, 8, True, 4),
    (None, 8, False, None),
    (6, 8, False, 6),
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_bits_of_the_head(
    head: tuple[int | None, int | None, bool, int | None],
    device: DeviceChoice,
    model: Path,
    asked: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed, setting, kernels, used = head
    save_setting("quantize_head", setting)
    monkeypatch.setattr("torch.cuda.is_available", lambda: kernels)
    without = device == "cuda" and not kernels
    start = open_services(AppOptions(model, device, (given(quantize_head=typed, extension=not without),)))
    with pytest.raises(ModelError):
        start.load_engine(lambda _: None)
    option = [] if typed is None else ["--quantize-head", str(typed)]
    option += ["--no-ext"] if without else []
    assert cli.main(["ask", "--no-save", "--device", device, *option, "-m", str(model), "Hello"]) == 1
    assert [call["quantize_head"] for call in asked] == [used, used]


def test_the_cpu_takes_no_notice_of_the_setting(model: Path, asked: list[dict[str, Any]]) -> None:
    save_setting("quantize_head", 8)
    with pytest.raises(ModelError):
        open_services(AppOptions(model, device="cpu")).load_engine(lambda _: None)
    assert asked[0]["quantize_head"] is None


@pytest.mark.parametrize(("device", "told"), [("auto", True), ("cpu", False)])
def test_a_variable_that_hides_the_card_is_told_unless_the_cpu_was_chosen(
    device: str, told: bool, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(typed_options, "hidden_cards", lambda: "CUDA_VISIBLE_DEVICES='' hides every NVIDIA card")
    assert cli.main(["ask", "--no-save", "--device", device, "-m", str(model), "Hello"]) == 1
    line = "exlchat: on the CPU: CUDA_VISIBLE_DEVICES='' hides every NVIDIA card\n"
    assert (line in capsys.readouterr().err) is told


def test_a_draft_model_is_of_the_model_that_it_was_typed_with(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another one it drafts if it can, and is left out with a reason if not."""
    save_random_llama(tmp_path / "first")
    save_random_llama(tmp_path / "other")
    drafts: list[Path] = []
    monkeypatch.setattr("exlchat.engine.draft.loading.load_draft", lambda path, **_: drafts.append(path))
    options = AppOptions(tmp_path / "first", device="cpu")
    drafted = resolve(given(draft_model=str(paths.bundled_model())))
    for name in ("first", "other"):
        with pytest.raises(ModelError, match="far enough"):
            load_wanted(tmp_path / name, options, drafted, kept=False)
    # Whether it fits the one that it was typed with, the engine says.
    assert [call["without_draft"] == "" for call in asked] == [True, False]
    assert "guide does not draft for other: token " in asked[1]["without_draft"]
    held = resolve(given(draft_model=str(tmp_path / "first")))
    with pytest.raises(ModelError, match="far enough"):
        load_wanted(tmp_path / "other", options, held, kept=False)
    assert drafts == [paths.bundled_model(), tmp_path / "first"]


def test_that_nobody_drafts_is_told_with_the_model() -> None:
    state = ModelState("first", is_guide=False)
    info = replace(ScriptedEngine().info, without_draft="small does not draft for large: why\x1b[2J")
    told = state.learn(Loaded(info))
    assert told == "small does not draft for large: why␛[2J"


def test_a_split_is_of_the_model_that_it_was_typed_with(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    save_setting("cards", [1, 0])
    options = AppOptions(tmp_path / "first", split=(20, 12))
    for name in ("first", "other"):
        with pytest.raises(ModelError, match="far enough"):
            load_wanted(tmp_path / name, options, options.over(read_settings(), Layer("remembered")), kept=False)
    assert [call["cards"] for call in asked] == [CardWishes((1, 0), (20, 12)), CardWishes((1, 0))]

"""Which folders are found, what their cards say, what a name means, and what is remembered of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file

from exlchat import paths
from exlchat.app.library import places
from exlchat.app.library.choice import choose_model
from exlchat.app.library.listing import Entry, by_name, entries, fit_text, in_order
from exlchat.app.library.memory import NAMES, ModelMemory, ModelSettings
from exlchat.app.library.places import FoundFolder, all_models, in_folder, in_hub_cache
from exlchat.app.options import AppOptions
from exlchat.cli import main as cli
from exlchat.config.files import Reading, load_settings, save_setting
from exlchat.config.layers import Layer, resolve, typed
from exlchat.config.state import State, save_state
from exlchat.llm.info import ModelError
from tests.chat.unprivileged import assert_unprivileged, public_folder
from tests.patience import within

CPU = AppOptions(None, device="cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


def model_at(folder: Path) -> Path:
    return Path(shutil.copytree(paths.bundled_model(), folder))


def names(found: list[FoundFolder]) -> list[str]:
    return [one.name for one in found]


def test_folders_are_searched_and_models_are_not(tmp_path: Path) -> None:
    model_at(tmp_path / "m" / "llama")
    model_at(tmp_path / "m" / "deep" / "er" / "mistral")
    model_at(tmp_path / "m" / "llama" / "copy")
    model_at(tmp_path / "m" / ".hidden" / "secret")
    (tmp_path / "m" / "notes").mkdir()
    assert names(in_folder(str(tmp_path / "m"))) == ["mistral", "llama"]


def test_links_and_circles_end_and_no_model_is_there_twice(tmp_path: Path) -> None:
    model_at(tmp_path / "m" / "llama")
    (tmp_path / "m" / "circle").symlink_to(tmp_path / "m")
    (tmp_path / "m" / "self").symlink_to(tmp_path / "m" / "self")
    (tmp_path / "m" / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "other").symlink_to(tmp_path / "m" / "llama")
    found = all_models((str(tmp_path / "m"), str(tmp_path / "other")))
    assert names(found) == ["llama", "guide"]


def test_a_folder_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    (missing,) = in_folder(str(tmp_path / "away"))
    assert missing.problem == f"{tmp_path / 'away'}: cannot be looked into (no such file or directory)"
    assert "begins with / or ~" in (in_folder("models")[0].problem or "")
    assert "no such home folder" in (in_folder("~nobody-of-that-name/models")[0].problem or "")


def test_a_folder_that_may_not_be_read_is_a_line() -> None:
    with public_folder() as folder:
        (folder / "shut").mkdir(mode=0)

        def check() -> None:
            (found,) = in_folder(str(folder / "shut"))
            assert "permission denied" in (found.problem or "")

        assert_unprivileged(check)


def test_a_tree_without_end_is_given_up_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MOST_FOLDERS", 20)
    for index in range(40):
        (tmp_path / "m" / str(index)).mkdir(parents=True)
    found = in_folder(str(tmp_path / "m"))
    assert "name one that is nearer to the models" in (found[-1].problem or "")


def test_the_hub_cache_is_read_with_its_branches(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--llama-exl2"
    for commit in ("a" * 40, "b" * 40, "c" * 40):
        model_at(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (repository / "refs" / "4.0bpw").write_text("b" * 40)
    (tmp_path / "hub" / "datasets--org--text" / "snapshots" / "d").mkdir(parents=True)
    expected = ["org/llama-exl2", "org/llama-exl2@4.0bpw", "org/llama-exl2@cccccccc"]
    assert names(in_hub_cache(tmp_path / "hub")) == expected
    assert names(all_models(())) == [*expected, "guide"]


def test_hf_home_is_respected(tmp_path: Path) -> None:
    model_at(tmp_path / "hf" / "hub" / "models--org--llama" / "snapshots" / "abc")
    code = "from exlchat.app.library.places import all_models; print([one.name for one in all_models(())])"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf")}
    environment.pop("HF_HUB_CACHE", None)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "org/llama@abc" in result.stdout


def test_cards_say_what_is_there_or_what_is_wrong(tmp_path: Path) -> None:
    model_at(tmp_path / "m" / "good")
    torn = model_at(tmp_path / "m" / "torn")
    weights = next(torn.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    strange = model_at(tmp_path / "m" / "strange")
    (strange / "config.json").write_text(json.dumps({"architectures": ["Mamba\x1b[2JForCausalLM"]}))
    huge = model_at(tmp_path / "m" / "huge")
    config = json.loads((huge / "config.json").read_text())
    (huge / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 10**400}))
    found = in_folder(str(tmp_path / "m"))
    listed = {one.name: one for one in entries(found, ModelMemory(None), CPU, Reading())}
    good = listed["good"].card
    assert (good.architecture, good.format, good.context) == ("LlamaForCausalLM", "EXL2 5.1 bpw", 2048)
    # Eight bits a byte of the weights, over the 10,523,520 weights of the guide.
    tensors = load_file(next((tmp_path / "m" / "good").glob("*.safetensors")))
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert good.bits_per_weight == pytest.approx(8 * size / 10_523_520)
    assert listed["good"].problem is None
    assert "not a whole safetensors file" in (listed["torn"].problem or "")
    assert "\x1b" not in (listed["strange"].problem or "")
    assert all("\n" not in (one.problem or "") for one in listed.values())


def test_what_does_not_fit_says_what_would(tmp_path: Path) -> None:
    import torch

    from exlchat.engine.model_card import Here, describe

    folder = model_at(tmp_path / "good")
    # fp32 on the CPU: 42,094,080 bytes of weights; a token takes 6 layers x 2 heads x 64 x 2 x 4 = 6,144 bytes.
    tight = Here(torch.device("cpu"), (42_094_080 + 1024 * 6144,), stays_quantized=False)
    card = describe(folder, tight, context=2048, kv_cache="fp32")
    assert card.problem is None
    assert card.fit is not None
    assert "--context 1024 or --kv-cache fp16 would fit" in (card.fit.problem or "")
    shorter = describe(folder, tight, kv_cache="fp32").fit
    assert shorter is not None
    assert (shorter.problem, shorter.context) == (None, 1024)
    none = describe(folder, Here(torch.device("cpu"), (1 << 20,), stays_quantized=False)).fit
    assert none is not None
    assert "its weights take" in (none.problem or "")


def test_a_model_that_needs_two_cards_says_so_before_it_is_loaded(tmp_path: Path) -> None:
    import torch

    from exlchat.engine.model_card import Here, describe

    folder = model_at(tmp_path / "good")
    # As above; half of the six layers and an end on each card, with room for 2,048 tokens of six layers in all.
    each = 42_094_080 // 2 + 4_000_000 + 2048 * 6144 // 2
    card = describe(folder, Here(torch.device("cpu"), (each, each), stays_quantized=False), kv_cache="fp32")
    assert card.fit is not None
    assert sum(card.fit.layers) == 6
    assert len(card.fit.layers) == 2
    first, second = card.fit.layers
    assert fit_text(Entry("good", card)) == f"fits over 2 cards ({first} + {second} layers)"


def test_a_model_that_no_card_holds_says_what_lies_in_the_machines_memory(tmp_path: Path) -> None:
    import torch

    from exlchat.engine.model_card import Here, describe

    folder, cpu = model_at(tmp_path / "good"), torch.device("cpu")
    # Not enough for the weights, nor in half precision for them and this context.
    room = 24_000_000
    card = describe(folder, Here(cpu, (room,), stays_quantized=False, memory=2**30), kv_cache="fp32", context=512)
    assert card.fit is not None
    assert 1 < card.fit.host_layers < 6
    told = f"fits, slowly: {card.fit.host_layers} of 6 layers in the machine's memory, with a context of 512"
    assert fit_text(Entry("good", card)) == told
    none = Here(cpu, (room,), stays_quantized=False, memory=2**30, host_layers=0)
    assert describe(folder, none, kv_cache="fp32", context=512).fit.problem  # type: ignore[union-attr]


def test_two_hundred_folders_take_well_under_a_second(tmp_path: Path) -> None:
    for index in range(200):
        folder = tmp_path / "m" / str(index)
        folder.mkdir(parents=True)
        for file in paths.bundled_model().iterdir():
            (folder / file.name).symlink_to(file)
    list(entries(in_folder(str(tmp_path / "m" / "0")), ModelMemory(None), CPU, Reading()))
    with within(1):
        listed = in_order(list(entries(in_folder(str(tmp_path / "m")), ModelMemory(None), CPU, Reading())))
        assert len(listed) == 200


def test_a_name_is_enough_where_it_is_clear(tmp_path: Path) -> None:
    found = [FoundFolder(tmp_path, name) for name in ("org/llama-3b", "org/llama-3b@4.0bpw", "llama-8b", "guide")]
    assert by_name("ORG/llama-3b", found) == found[0]
    assert by_name("llama-3b", found) == found[0]
    assert by_name("4.0bpw", found) == found[1]
    assert by_name("8b", found) == found[2]
    assert by_name("zephyr", found) is None
    with pytest.raises(ModelError, match=r"llama could be org/llama-3b, org/llama-3b@4.0bpw, llama-8b; give more"):
        by_name("llama", found)


def test_the_command_line_takes_names_of_the_library(tmp_path: Path) -> None:
    folder = model_at(tmp_path / "m" / "llama-3b")
    save_setting("model_folders", [str(tmp_path / "m")])
    assert load_settings().model_folders == (str(tmp_path / "m"),)
    choice = choose_model("llama-3b", last_used=None, bundled=paths.bundled_model(), library=places.library)
    assert choice.path == folder


def test_models_used_before_are_listed_with_the_newest_first(tmp_path: Path) -> None:
    save_state(State())
    memory = ModelMemory(tmp_path / "models.json")
    for name in ("a", "b", "c"):
        model_at(tmp_path / name)
    memory.mark_used(tmp_path / "b")
    shutil.rmtree(tmp_path / "c")
    memory.mark_used(tmp_path / "c")
    found = all_models((str(tmp_path / "a"),), memory.used_models())
    listed = in_order(list(entries(found, memory, CPU, Reading())))
    assert [one.name for one in listed] == ["b", "a", "guide"]
    assert listed[0].used == pytest.approx(time.time(), abs=5)


def test_json_and_text_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_at(tmp_path / "m" / "evil\x1b[2Jname")
    assert cli.main(["models", "--device", "cpu", "--folder", str(tmp_path / "m"), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["format"], one["fit"]["problem"], one["last_used"]) == ("EXL2 5.1 bpw", None, None)
    assert cli.main(["models", "--device", "cpu", "--folder", str(tmp_path / "m"), "--context", "999999"]) == 0
    text = capsys.readouterr().out
    assert "this model has 1 to 2,048" in text
    assert "\x1b" not in text
    (tmp_path / "empty").mkdir()
    assert cli.main(["models", "--folder", str(tmp_path / "empty"), "--device", "cpu"]) == 0
    assert "exlchat pull org/name" in capsys.readouterr().out


# What is remembered


def test_what_was_typed_wins_then_the_model_then_the_settings(tmp_path: Path) -> None:
    memory = ModelMemory(tmp_path / "models.json")
    memory.keep(tmp_path, ModelSettings(context=2048, kv_cache="q8"))
    settings = Layer("file", {"context": 512, "template": "plain", "kv_cache": "fp16"})
    held = resolve(typed(context=4096), memory.settings_of(tmp_path).layer, settings)
    assert [held.value(name) for name in NAMES] == [4096, "q8", "plain", None]
    other = resolve(memory.settings_of(tmp_path / "other").layer, settings)
    assert (other.value("context"), other.value("kv_cache")) == (512, "fp16")


def test_settings_survive_use_and_links_and_are_forgotten_by_none(tmp_path: Path) -> None:
    memory = ModelMemory(tmp_path / "models.json")
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    memory.keep(tmp_path / "link", ModelSettings().with_value("context", "8192").with_value("system", "Be brief."))
    memory.mark_used(tmp_path / "model")
    assert memory.settings_of(tmp_path / "model") == ModelSettings(context=8192, system="Be brief.")
    memory.keep(tmp_path / "model", memory.settings_of(tmp_path / "model").with_value("context", "none"))
    assert memory.settings_of(tmp_path / "link") == ModelSettings(system="Be brief.")
    assert list(memory.last_used()) == [str((tmp_path / "model").resolve())]


def test_a_line_about_a_model_is_news_once_whatever_else_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    assert ModelMemory(file).is_news(tmp_path, "it has no template")
    memory = ModelMemory(file)
    memory.keep(tmp_path, ModelSettings(context=64))
    memory.mark_used(tmp_path)
    assert not memory.is_news(tmp_path, "it has no template")
    assert memory.is_news(tmp_path, "it has two templates")
    assert memory.is_news(tmp_path / "other", "it has no template")
    assert memory.settings_of(tmp_path) == ModelSettings(context=64)
    assert list(memory.last_used()) == [str(tmp_path)]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"/m": 3}', '{"/m": {"context": -4, "kv_cache": [], "used": "x", "told": 5}}']
)
def test_a_broken_memory_is_an_empty_one(tmp_path: Path, content: str) -> None:
    file = tmp_path / "models.json"
    file.write_text(content)
    memory = ModelMemory(file)
    assert memory.settings_of(Path("/m")) == ModelSettings()
    assert memory.last_used() == {}
    assert memory.is_news(Path("/m"), "a line")
    memory.mark_used(Path("/m"))
    assert list(memory.last_used()) == ["/m"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("contxt", "1", "did you mean context?"),
        ("context", "0", "a whole number, 1 or more"),
        ("kv_cache", "q3", "must be one of auto, fp32"),
        ("zzzz", "1", "there are context, kv_cache, template, system"),
    ],
)
def test_what_cannot_be_set_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelSettings().with_value(name, value)


def test_finding_models_imports_no_torch() -> None:
    code = "import sys; from exlchat.app.library.places import library; library(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_seeing_that_a_model_can_be_loaded_imports_no_torch() -> None:
    """`exlchat pull` does so at its end, and would take seconds longer."""
    code = (
        "import sys; from exlchat.engine.weights.check import check; from exlchat.paths import bundled_model;"
        "check(bundled_model()); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"

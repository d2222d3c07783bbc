"""Another model inside a conversation, in the real app: when, how it fails, and what waits for it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.config.schema import Settings
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Engine
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

OnProgress = Callable[[LoadProgress], None]


class Models:
    """Folders that pass for models, and an engine for each, whose loading the test may hold or break."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "models"
        self.engines: dict[str, ScriptedEngine] = {}
        self.broken: set[str] = set()
        self.held: dict[str, threading.Event] = {}
        self.begun: list[str] = []

    def add(self, name: str, *answers: str, held: bool = False, broken: bool = False) -> ScriptedEngine:
        shutil.copytree(paths.bundled_model(), self.folder / name)
        engine = self.engines[name] = ScriptedEngine(*answers, name=name)
        if held:
            self.held[name] = threading.Event()
        if broken:
            self.broken.add(name)
        return engine

    def loader(self, path: Path) -> Callable[[OnProgress], Engine]:
        def load(on_progress: OnProgress) -> Engine:
            self.begun.append(path.name)
            if path.name in self.held:
                while not self.held[path.name].wait(0.02):
                    on_progress(LoadProgress(1, 4, "reading weights"))
            if path.name in self.broken:
                raise ModelError(f"{path.name}: memory ran out; take fewer bits")
            return self.engines[path.name]

        return load

    @property
    def settings(self) -> Settings:
        return Settings(temperature=0.0, model_folders=(str(self.folder),))


def read(chat: ChatApp) -> str:
    """The screen as one line, without frames and edges, so that wrapping does not matter."""
    return " ".join(re.sub("[│▌·]", " ", shown(chat)).split())


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


async def test_the_next_answer_of_the_same_conversation_comes_from_the_other_model(
    tmp_path: Path, models: Models
) -> None:
    first, other = ScriptedEngine("I am the first"), models.add("other", "I am the other")
    chat = app(tmp_path, first, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "who?")
        await idle(pilot)
        await say(pilot, "/model other")
        await until(pilot, lambda: "other answers from here on" in shown(chat))
        assert first.unloaded
        await say(pilot, "and now?")
        await idle(pilot)
        assert [message.text for message in chat.session.branch] == [
            "who?",
            "I am the first",
            "and now?",
            "I am the other",
        ]
        assert chat.chat_screen.status.facts.model == "other"
    assert "I am the first" in other.prompts[0]


async def test_a_prompt_sent_while_the_other_model_loads_waits_and_is_answered_by_it(
    tmp_path: Path, models: Models
) -> None:
    first, other = ScriptedEngine("one"), models.add("other", "two", held=True)
    chat = app(tmp_path, first, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "a")
        await idle(pilot)
        await say(pilot, "/model other")
        await until(pilot, lambda: "reading weights" in shown(chat))
        await say(pilot, "b")
        await until(pilot, lambda: "Waiting for the model to be loaded; the message is saved." in shown(chat))
        models.held["other"].set()
        await until(pilot, lambda: bool(other.prompts))
        await idle(pilot)
        assert chat.session.branch[-1].text == "two"
    assert len(first.prompts) == 1


async def test_a_switch_waits_for_the_answer_and_escape_hastens_it(tmp_path: Path, models: Models) -> None:
    first = ScriptedEngine("a long answer")
    first.hold()
    models.add("other", "two")
    chat = app(tmp_path, first, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await say(pilot, "a")
        first.step(3)
        await until(pilot, lambda: "a l" in shown(chat))
        await say(pilot, "/model other")
        await until(pilot, lambda: "other is loaded when the answer has ended; Esc or ctrl+c stops that" in told(chat))
        assert not models.begun
        await say(pilot, "b")
        await pilot.press("escape")
        await until(pilot, lambda: chat.chat_screen.model.name == "other" and chat.chat_screen.model.info is not None)
        await idle(pilot)
        await until(pilot, lambda: len(chat.session.branch) == 4)
        assert [message.text for message in chat.session.branch] == ["a", "a l", "b", "two"]


async def test_a_folder_that_cannot_be_loaded_leaves_the_model_that_is_there(tmp_path: Path, models: Models) -> None:
    first = ScriptedEngine("one", "two")
    models.add("cut")
    (models.folder / "cut" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0garbage!")
    chat = app(tmp_path, first, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "a")
        await idle(pilot)
        await say(pilot, "/model cut")
        await until(pilot, lambda: "scripted stays loaded" in shown(chat))
        assert "download the model again" in read(chat)
        await say(pilot, "b")
        await idle(pilot)
        assert chat.session.branch[-1].text == "two"
    assert not models.begun


async def test_a_model_that_breaks_while_it_loads_brings_the_one_before_back(tmp_path: Path, models: Models) -> None:
    engines = [ScriptedEngine("one"), ScriptedEngine("again")]
    old = list(engines)
    models.add("large", broken=True)
    chat = app(tmp_path, load=lambda _: engines.pop(0), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "a")
        await idle(pilot)
        await say(pilot, "/model large")
        await until(pilot, lambda: "large: memory ran out; take fewer bits" in shown(chat))
        await until(pilot, lambda: "scripted is loaded again" in shown(chat))
        await say(pilot, "b")
        await idle(pilot)
        assert chat.session.branch[-1].text == "again"
        assert old[0].unloaded
        assert not old[1].unloaded


async def test_without_any_model_the_conversation_can_be_read_and_another_be_loaded(
    tmp_path: Path, models: Models
) -> None:
    engines = [ScriptedEngine("one")]
    models.add("large", broken=True)
    models.add("small", "here again")

    def load(_: OnProgress) -> Engine:
        if not engines:
            raise ModelError("first: gone from the disk; plug it in")
        return engines.pop(0)

    chat = app(tmp_path, load=load, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(140, 40)) as pilot:
        await say(pilot, "a")
        await idle(pilot)
        await say(pilot, "/model large")
        await until(pilot, lambda: chat.chat_screen.model.failure is not None)
        screen = read(chat)
        assert "the model before it could not be loaded again: first: gone from the disk; plug it in" in screen
        assert "Conversations can be read" in screen
        assert "one" in screen
        await say(pilot, "/model small")
        await until(pilot, lambda: "small answers from here on" in shown(chat))
        assert chat.chat_screen.model.failure is None
        await say(pilot, "b")
        await idle(pilot)
        assert chat.session.branch[-1].text == "here again"


async def test_of_two_quick_switches_the_last_one_counts(tmp_path: Path, models: Models) -> None:
    first = ScriptedEngine("one")
    models.add("second", "two", held=True)
    models.add("third", "three")
    chat = app(tmp_path, first, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "a")
        await idle(pilot)
        await say(pilot, "/model second")
        await until(pilot, lambda: models.begun == ["second"])
        await say(pilot, "b")
        await say(pilot, "/model third")
        await until(pilot, lambda: len(chat.session.branch) == 4 and not chat.session.busy)
        assert chat.session.branch[-1].text == "three"
        assert models.begun == ["second", "third"]
        assert not models.engines["third"].unloaded


async def test_a_switch_while_the_first_model_still_loads(tmp_path: Path, models: Models) -> None:
    models.add("first", "never", held=True)
    models.add("second", "two")
    load = models.loader(models.folder / "first")
    chat = app(tmp_path, load=load, loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: models.begun == ["first"])
        await say(pilot, "a")
        await say(pilot, "/model second")
        await until(pilot, lambda: len(chat.session.branch) == 2 and not chat.session.busy)
        assert chat.session.branch[-1].text == "two"


async def test_quitting_while_another_model_loads(tmp_path: Path, models: Models) -> None:
    models.add("other", held=True)
    chat = app(tmp_path, ScriptedEngine(), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/model other")
        await until(pilot, lambda: models.begun == ["other"])
        await pilot.press("ctrl+q")
    assert not chat.engine_jobs._thread.is_alive()


async def test_a_name_that_means_nothing_or_too_much_changes_nothing(tmp_path: Path, models: Models) -> None:
    models.add("llama-3b")
    models.add("llama-8b")
    chat = app(tmp_path, ScriptedEngine(), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/model llama")
        await until(pilot, lambda: "llama could be llama-3b, llama-8b; give more of the name" in told(chat))
        assert chat.chat_screen.composer.text == "/model llama"
        await say(pilot, "/model zephyr")
        await until(pilot, lambda: "zephyr: no such folder" in told(chat))
    assert not models.begun


async def test_the_picker_narrows_by_typing_and_enter_loads(tmp_path: Path, models: Models) -> None:
    models.add("llama-3b")
    models.add("llama-8b", "eight")
    models.add("torn")
    (models.folder / "torn" / "config.json").write_text("{")
    chat = app(tmp_path, ScriptedEngine(), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 34)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/models")
        await until(pilot, lambda: "llama-8b" in shown(chat))
        screen = shown(chat)
        assert "EXL2 5.1 bpw" in screen
        assert "guide" in screen
        assert re.search("torn +cannot be loaded", screen)
        await pilot.press(*"torn")
        await until(pilot, lambda: "not JSON" in read(chat))
        await pilot.press("enter")
        await pilot.pause(0.1)
        assert not models.begun
        await pilot.press(*["backspace"] * 4)
        await pilot.press(*"8b")
        await until(pilot, lambda: "llama-3b" not in shown(chat))
        await pilot.press("enter")
        await until(pilot, lambda: models.begun == ["llama-8b"])
        await until(pilot, lambda: chat.chat_screen.model.name == "llama-8b")


async def test_the_picker_shows_no_control_character_of_a_folder_name(tmp_path: Path, models: Models) -> None:
    models.add("evil\x1b[31m\u202ered")
    chat = app(tmp_path, ScriptedEngine(), loader=models.loader, settings=models.settings)
    async with chat.run_test(size=(120, 34)) as pilot:
        await say(pilot, "/models")
        await until(pilot, lambda: "evil" in shown(chat))
        assert not {"\x1b", "\u202e"} & set(shown(chat))
        await pilot.press("escape")
        await pilot.pause()
        assert "Enter loads" not in shown(chat)


async def test_what_is_set_for_a_model_is_remembered_and_used(tmp_path: Path, models: Models) -> None:
    models.add("other", "two", "three")
    chat = app(tmp_path, ScriptedEngine("one"), loader=models.loader, settings=models.settings)
    memory = chat.services.shelf.memory
    memory.keep(models.folder / "other", memory.settings_of(Path("/none")).with_value("template", "plain"))
    async with chat.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/model other")
        await until(pilot, lambda: models.begun == ["other"])
        await until(pilot, lambda: chat.chat_screen.model.name == "other" and chat.chat_screen.model.info is not None)
        assert chat.session.template == "plain"
        await say(pilot, "hi")
        await idle(pilot)
        assert "<|im_start|>" not in models.engines["other"].prompts[0]
        await say(pilot, "/model set contxt 8")
        await until(pilot, lambda: "did you mean context?" in told(chat))
        await say(pilot, "/model set system Be brief.")
        await until(pilot, lambda: "system, for new conversations" in told(chat))
        await say(pilot, "/new")
        assert chat.session.system_prompt == "Be brief."

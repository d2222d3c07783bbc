"""Models and who speaks with them, as names in requests: one model at a time, and no answer is cut for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exlchat import engine, paths
from exlchat.api.errors import ApiError
from exlchat.api.voice import Voice
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.shelf import Shelf
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.app.serving.house import UsersHouse, one_or_library
from exlchat.config.files import read_settings
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Engine
from exlchat.llm.sampling import SamplingSettings
from exlchat.server import answering
from tests.endless_model import save_endless_llama
from tests.patience import PATIENCE
from tests.server.served import CHAT, GREEDY_VOICE, Served, read_until, serving, until

QUESTION = [{"role": "user", "content": "What is EXL2?"}]


class TwoModels:
    """The bundled model and an endless one, loaded as they are asked for; a third that cannot be."""

    def __init__(self, folder: Path) -> None:
        self._folders = {"guide": paths.bundled_model(), "endless": folder, "broken": folder / "nowhere"}
        self.loaded: list[Engine] = []
        self.may_load = threading.Event()
        self.may_load.set()

    def models(self) -> list[str]:
        return list(self._folders)

    def load(self, model: str, on_progress: Callable[[LoadProgress], None]) -> Engine:
        on_progress(LoadProgress(1, 4, "reading"))
        assert self.may_load.wait(PATIENCE)
        if model == "broken":
            raise ModelError("broken: there is no such folder; give another")
        # Two at a time would not fit on a card.
        assert all(one.gone for one in self.loaded)
        self.loaded.append(_Counted(self._folders[model]))
        return self.loaded[-1]

    def variants(self) -> list[str]:
        return ["@pirate", ":wild"]

    def voice(self, model: str, variant: str) -> Voice:
        if variant == "@pirate":
            return replace(GREEDY_VOICE, system="You are a pirate.")
        return replace(GREEDY_VOICE, sampling=SamplingSettings(temperature=2.0)) if variant else GREEDY_VOICE


class _Counted:
    """A loaded model that knows whether it was unloaded."""

    def __init__(self, folder: Path) -> None:
        self._engine = engine.load(folder, device="cpu", kv_cache="fp32", max_seq_len=2048, bundled=True)
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def unload(self) -> None:
        self._engine.unload()
        self.gone = True

    def memory_report(self) -> Any:
        return self._engine.memory_report()


@pytest.fixture
def house(tmp_path: Path) -> TwoModels:
    return TwoModels(save_endless_llama(tmp_path / "endless"))


@pytest.fixture
def served(house: TwoModels) -> Iterator[Served]:
    first = house.load("guide", lambda _: None)
    with serving(first, house=house) as found:
        yield found


def said(reply: Any) -> str:
    assert reply.status == 200, reply.body
    return str(reply.json["choices"][0]["message"]["content"])


def test_another_model_is_loaded_when_it_is_asked_for(served: Served, house: TwoModels) -> None:
    body = {"messages": QUESTION, "max_tokens": 8}
    first = said(served.ask(CHAT, {**body, "model": "guide"}))
    other = served.ask(CHAT, {**body, "model": "endless"})
    assert other.json["model"] == "endless"
    assert [one.gone for one in house.loaded] == [True, False]
    told = {one["id"]: one for one in served.ask("/v1/models").json["data"]}
    assert list(told) == [f"{model}{one}" for model in house.models() for one in ("", "@pirate", ":wild")]
    assert [name for name, one in told.items() if one["meta"]["loaded"]] == [
        "endless",
        "endless@pirate",
        "endless:wild",
    ]
    # Prompts written elsewhere would go around a voice.
    assert ["chat_template" in told[name]["meta"] for name in ("endless", "endless@pirate")] == [True, False]
    assert said(served.ask(CHAT, {**body, "model": "guide"})) == first
    assert served.ask(CHAT, {**body}).json["model"] == "guide"


def test_no_answer_is_cut_for_another_model(served: Served) -> None:
    served.ask(CHAT, {"model": "endless", "messages": QUESTION, "max_tokens": 1})
    running = served.open(CHAT, {"model": "endless", "messages": QUESTION, "max_tokens": 300, "stream": True})
    read_until(running, b'"content": "')
    found: list[str] = []
    body = {"model": "guide", "messages": QUESTION, "max_tokens": 8}
    asking = threading.Thread(target=lambda: found.append(said(served.ask(CHAT, body))))
    asking.start()
    until(lambda: served.desk.running == 2)
    # Who asks for the model that is loaded comes behind the one who asked before, and is answered by it nevertheless.
    behind = served.ask(CHAT, {"model": "endless", "messages": QUESTION, "max_tokens": 5})
    assert b'"finish_reason": "length"' in read_until(running, b"[DONE]")
    asking.join(PATIENCE)
    assert found
    assert behind.json["usage"]["completion_tokens"] == 5


def test_who_waits_for_a_model_is_told_so(served: Served, house: TwoModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "SILENCE_SECONDS", 0.05)
    house.may_load.clear()
    waiting = served.open(CHAT, {"model": "endless", "messages": QUESTION, "max_tokens": 3, "stream": True})
    assert b"200 OK" in read_until(waiting, b": loading the model, 25 %\n\n")
    # One who leaves meanwhile breaks nothing.
    gone = served.open(CHAT, {"model": "endless", "messages": QUESTION, "stream": True})
    until(lambda: served.desk.running == 2)
    gone.close()
    until(lambda: served.desk.running == 1)
    house.may_load.set()
    read_until(waiting, b"[DONE]")


def test_a_model_whose_client_has_left_is_there_for_the_next_one(served: Served, house: TwoModels) -> None:
    house.may_load.clear()
    connection = served.open(CHAT, {"model": "endless", "messages": QUESTION})
    until(lambda: served.desk.loading is not None)
    connection.close()
    until(lambda: served.desk.running == 0)
    house.may_load.set()
    assert served.ask(CHAT, {"model": "endless", "messages": QUESTION, "max_tokens": 2}).status == 200
    assert len(house.loaded) == 2


def test_a_model_that_cannot_be_loaded_is_one_line_and_the_others_answer(served: Served) -> None:
    reply = served.ask(CHAT, {"model": "broken", "messages": QUESTION})
    assert (reply.status, reply.json["error"]["code"]) == (500, "model_failed")
    assert reply.json["error"]["message"] == "broken: there is no such folder; give another"
    assert reply.headers["x-should-retry"] == "false"
    assert said(served.ask(CHAT, {"messages": QUESTION, "max_tokens": 4}))


def test_a_model_that_nobody_asks_gives_its_memory_back(house: TwoModels) -> None:
    first = house.load("guide", lambda _: None)
    with serving(first, house=house, unload_after=0.2) as served:
        before = said(served.ask(CHAT, {"messages": QUESTION, "max_tokens": 8}))
        until(lambda: house.loaded[0].gone)
        assert served.ask("/health").status == 200
        assert served.ask("/metrics").status == 200
        assert not served.ask("/v1/models/guide").json["meta"]["loaded"]
        # Tokens need it, too.
        assert served.ask("/tokenize", {"content": "x"}).json["tokens"]
        assert said(served.ask(CHAT, {"messages": QUESTION, "max_tokens": 8})) == before
        assert len(house.loaded) >= 2


def test_a_persona_and_a_preset_are_names_of_their_own(served: Served) -> None:
    plain = served.ask("/v1/models").json
    assert plain["data"][1]["id"] == "guide@pirate"
    told = {"messages": QUESTION, "max_tokens": 1, "return_token_ids": True}
    pirate = served.ask(CHAT, {**told, "model": "guide@pirate"}).json
    assert pirate["model"] == "guide@pirate"
    as_system = [{"role": "system", "content": "You are a pirate."}, *QUESTION]
    assert pirate["prompt_token_ids"] == served.ask(CHAT, {**told, "messages": as_system}).json["prompt_token_ids"]
    alone = served.ask(CHAT, {**told, "model": "@pirate"}).json
    assert alone["prompt_token_ids"] == pirate["prompt_token_ids"]
    own = [{"role": "system", "content": "Be brief."}, *QUESTION]
    both = served.ask("/apply-template", {"model": "guide@pirate", "messages": own}).json["prompt"]
    assert "You are a pirate.\n\nBe brief." in both
    wild = {"messages": QUESTION, "max_tokens": 20, "model": "guide:wild"}
    assert len({said(served.ask(CHAT, {**wild, "seed": seed})) for seed in range(4)}) > 1
    for unknown in ("guide@nobody", "guide@", "guide@pirate:wild", "@../pirate"):
        assert served.ask(CHAT, {**told, "model": unknown}).status == 404


# Those of a user


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def users_house(home: Path, *, others: bool = False) -> UsersHouse:
    home.joinpath("config").mkdir(parents=True, exist_ok=True)
    guide = paths.bundled_model()
    memory = ModelMemory(paths.folders().model_memory)

    def loader(path: Path) -> Callable[[Callable[[LoadProgress], None]], Engine]:
        return lambda told: load_wanted(path, shelf.options, shelf.held(path), kept=True, on_progress=told)

    shelf = Shelf(AppOptions(guide), read_settings(), memory, loader)
    return UsersHouse(shelf, one_or_library(shelf, guide, others=others))


def test_a_users_personas_and_presets_speak(home: Path) -> None:
    personas = home / "config" / "personas"
    personas.mkdir(parents=True)
    personas.joinpath("pirate.toml").write_text('name = "Pirate"\nsystem = "Arr, {{user}}."\n[sampling]\ntop_k = 7\n')
    house = users_house(home)
    assert {"@pirate", "@assistant", ":deterministic"} <= set(house.variants())
    pirate = house.voice("guide", "@pirate")
    assert "Arr" in pirate.system
    assert "{{" not in pirate.system
    assert pirate.sampling.top_k == 7
    assert house.voice("guide", "@pirate") == pirate
    assert house.voice("guide", ":deterministic").sampling.greedy
    assert house.voice("guide", "").system == ""


def test_a_persona_that_is_damaged_says_so(home: Path) -> None:
    house = users_house(home)
    with pytest.raises(ApiError, match="nobody"):
        house.voice("guide", "@nobody")


def test_the_library_is_there_where_that_is_wanted(home: Path) -> None:
    library = home / "data" / "models" / "org" / "tiny"
    save_endless_llama(library)
    assert users_house(home).models() == ["guide"]
    house = users_house(home, others=True)
    assert house.models() == ["guide", "tiny"]
    loaded = house.load("tiny", lambda _: None)
    assert loaded.info.path == str(library.resolve())
    with pytest.raises(ModelError, match="library"):
        house.load("../../etc", lambda _: None)

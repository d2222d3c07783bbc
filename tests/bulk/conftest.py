"""The bundled model, and a run of a file by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from exlchat import engine, paths
from exlchat.api.asked import Speaker
from exlchat.api.chat_model import ChatModel
from exlchat.api.voice import Voice
from exlchat.bulk.figures import Figures
from exlchat.bulk.lines import Lines
from exlchat.bulk.output import opened
from exlchat.bulk.running import BulkRun, places_to_ask, weight
from exlchat.chat.answer_options import AnswerOptions
from exlchat.llm.port import Engine
from exlchat.llm.sampling import GREEDY


@pytest.fixture(scope="module")
def guide_engine() -> Iterator[Engine]:
    loaded = engine.load(paths.bundled_model(), device="cpu", kv_cache="fp32", bundled=True)
    yield loaded
    loaded.unload()


@dataclass
class Runner:
    """Runs files into one folder."""

    speaker: Speaker
    folder: Path
    figures: Figures | None = None
    looks: int = 0
    """How often the last run looked at what it had come to."""

    def run(self, *requests: Any, rows: int = 8, score: bool = False, name: str = "out", **voice: Any) -> list[Any]:
        """The lines of the answers, in the order of their ids as they were asked."""
        data = "".join(json.dumps(one) + "\n" for one in requests).encode()
        lines = Lines("in.jsonl", data, plain=False, score=score)
        speaker = replace(self.speaker, voice=replace(self.speaker.voice, **voice))
        with opened(self.folder / f"{name}.jsonl", lines, name) as output:
            left = places_to_ask(lines, output)
            self.figures = Figures(len(lines), len(output.done), sum(weight(lines, one) for one in left))
            self.looks = 0
            BulkRun(
                lines,
                output,
                speaker,
                rows=rows,
                figures=self.figures,
                wanted=lambda: True,
                tell=self._look,
            ).run()
            output.sort()
        return [json.loads(line) for line in (self.folder / f"{name}.jsonl").read_bytes().splitlines()]

    def _look(self) -> None:
        self.looks += 1


@pytest.fixture
def runner(guide_engine: Engine, tmp_path: Path) -> Runner:
    voice = Voice(sampling=GREEDY, speech=AnswerOptions(stop_repeating=False))
    return Runner(Speaker("guide", ChatModel(guide_engine), voice, "same"), tmp_path)

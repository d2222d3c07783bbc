"""How an answer came to be, as it lies in the database: small, and read whatever program wrote it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given

from exlchat.chat.model import AnswerRecord
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.store.rows import pack_record, unpack_record
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings
from tests.chat.personas.strategies import sampling as wishes

RECORD = AnswerRecord(
    "llama", "chatml", SamplingSettings(temperature=0.7, min_p=0.05), GenerationStats(1, 2, 3, 0.1, 0.2, 0.3, 4), "stop"
)


def packed(record: AnswerRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pack_record(record) or "")
    return found


def test_of_the_sampling_only_what_is_not_as_usual_is_kept() -> None:
    assert packed(RECORD)["sampling"] == {"temperature": 0.7, "min_p": 0.05}
    assert packed(replace(RECORD, sampling=SamplingSettings()))["sampling"] == {}
    assert unpack_record(pack_record(RECORD)) == RECORD


@given(wishes)
def test_every_way_of_drawing_is_read_again(wish: SamplingOverrides) -> None:
    try:
        record = replace(RECORD, sampling=wish.apply(SamplingSettings()))
    except ValueError:
        return
    assert unpack_record(pack_record(record)) == record


@pytest.mark.parametrize(
    "sampling",
    [
        # Of a program that knew four values, of one that wrote out all of them, and of one that knows more.
        {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.05},
        asdict(RECORD.sampling),
        {"temperature": 0.7, "min_p": 0.05, "warmth": 3},
    ],
)
def test_records_of_other_versions_are_read(sampling: dict[str, Any]) -> None:
    assert unpack_record(json.dumps({**packed(RECORD), "sampling": sampling})) == RECORD


@pytest.mark.parametrize(
    "sampling", [{"temperature": -1}, {"top_k": "many"}, {"order": ["min_p"]}, {"logit_bias": {"a": 1}}, [], None]
)
def test_a_record_with_sampling_that_cannot_be_is_none(sampling: object) -> None:
    assert unpack_record(json.dumps({**packed(RECORD), "sampling": sampling})) is None

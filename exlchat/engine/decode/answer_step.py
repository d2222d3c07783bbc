"""What a captured step has to be for answers of every kind; `decode_step.CapturedStep` is one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.schedule.masked_tokens import MaskedStep
from exlchat.engine.schedule.run_ahead import DecodeStep


class AnswerStep(DecodeStep, MaskedStep, Protocol):
    """A captured step that can be launched whole or in two parts."""

    def forward(self, sequence: KVSequence, token: int, position: int) -> Tensor:
        """Feeds a token of a sequence and draws nothing; float32 `[vocab]`."""

"""What all chunks of a reply begin with, and the reply as a whole, too."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import dataclass, field

from exlchat import __version__
from exlchat.llm.info import ModelInfo


@dataclass(frozen=True, slots=True)
class Head:
    """`model` is what the client has called it; `fingerprint` is the same while answers come to the same."""

    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, kind: str, prefix: str) -> dict[str, object]:
        return {
            "id": f"{prefix}{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def chunks(self, kind: str, prefix: str) -> str:
        """The JSON text that each chunk begins with, up to its choices."""
        return json.dumps(self.of(kind, prefix))[:-1] + ', "choices": ['


def fingerprint(info: ModelInfo, kv_kind: str) -> str:
    """Of all that the same draws depend on: model, device, how keys and values are kept, and this program."""
    parts = (info.path, info.quantization, info.device, info.dtype, kv_kind, __version__)
    return f"exl-{hashlib.sha256(chr(0).join(parts).encode(errors='replace')).hexdigest()[:12]}"

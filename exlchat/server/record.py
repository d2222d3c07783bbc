"""What is noted of a request: counts and times, never what was said."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from exlchat.llm.request import Rank
from exlchat.untrusted.text import one_line, visible


@dataclass(slots=True)
class Record:
    """Filled while a request is carried out. `id` is told to the client."""

    id: str
    method: str
    path: str
    status: int = 499
    """Of a client that left before it was told anything."""
    model: str = ""
    key: str = ""
    least_rank: Rank = Rank.API
    """Of the key: no answer of it goes sooner."""
    most_answers: int | None = None
    """Of the key, at a time."""
    rank: Rank = Rank.API
    """Of the most urgent of its answers."""
    prompt_tokens: int = 0
    read_tokens: int = 0
    """How many of them are read by now."""
    new_tokens: int = 0
    ignored: tuple[str, ...] = ()
    trouble: str = ""
    left: bool = False
    """Whether the client went before the end."""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """All that it took, once it has ended."""

    @property
    def stage(self) -> str:
        """What goes on in it, or went on when it ended."""
        if self.new_tokens:
            return "writing"
        return "reading" if self.prompt_tokens else "waiting"

    def line(self) -> str:
        parts = [self.method, self.path, str(self.status), f"{self.seconds:.3f} s"]
        if self.model:
            parts.append(f"{self.model}: {self.prompt_tokens} tokens read, {self.new_tokens} made")
        parts += [f"key {self.key}"] if self.key else []
        parts += [f"ignored: {', '.join(self.ignored)}"] if self.ignored else []
        parts += ["the client left"] if self.left else []
        parts += [self.trouble] if self.trouble else []
        return one_line(visible(" · ".join(parts)), 500)

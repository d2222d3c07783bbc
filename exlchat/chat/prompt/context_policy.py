"""What happens when a conversation does not fit the context, by name."""

from __future__ import annotations

from typing import Literal, get_args

ContextPolicy = Literal["drop", "summarise", "stop"]
CONTEXT_POLICIES: tuple[ContextPolicy, ...] = get_args(ContextPolicy)

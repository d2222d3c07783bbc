"""Loading a smaller model that guesses tokens for another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exlchat.engine.engine import load
from exlchat.engine.local_engine import LocalEngine
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.cards import ANY_CARDS, CardWishes
from exlchat.llm.info import LoadProgress

_LONGEST = 32768
"""A model without a wish for another context has no longer one."""


def why_not_draft(model_dir: Path, draft_dir: Path) -> str | None:
    """Why a model cannot guess for another, in one line; `None` where their tokens are the same. Reads no weights.

    Raises:
        ModelError: one of them has no tokenizer that can be read.
    """
    first, second = (_tokenizer(Checkpoint(folder)) for folder in (model_dir, draft_dir))
    unlike = first.unlike(second)
    return None if unlike is None else f"{draft_dir.name} does not draft for {model_dir.name}: {unlike}"


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer(checkpoint, read_spec(checkpoint.config, str(checkpoint.path / "config.json")).vocab_size)


def load_draft(
    model_dir: Path,
    *,
    context: int | None,
    device: str,
    kv_cache: str,
    cards: CardWishes = ANY_CARDS,
    extension: bool,
    build_cache: Path | None,
    on_progress: Callable[[LoadProgress], None] | None,
) -> LocalEngine:
    """With a cache for one sequence, and no longer than it was made for: beyond that it guesses nothing.

    Args:
        context: of the model that it guesses for; other arguments as of `load`.
        cards: of that model, whose split says nothing of this one.

    Raises:
        ModelError: one line that says what is wrong and how to mend it.
    """
    checkpoint = Checkpoint(model_dir)
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    own = min(spec.longest_context, context or _LONGEST)
    return load(
        checkpoint,
        device=device,
        kv_cache=kv_cache,
        max_seq_len=own,
        cache_tokens=own,
        cards=replace(cards, split=(), host_layers=None, tensor_parallel=1),
        extension=extension,
        build_cache=build_cache,
        on_progress=on_progress,
    )

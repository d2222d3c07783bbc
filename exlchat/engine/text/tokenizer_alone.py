"""The tokenizer and the templates of a model directory without its weights, for looking at prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exlchat.engine.model.architecture import read_spec
from exlchat.engine.text.template_files import DEFAULT, read_templates
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelInfo


class TokenizerAlone:
    """What a loaded model says of texts and ids, read from headers and small files alone.

    Args:
        model_dir, bundled: as for `load`.

    Raises:
        ModelError: one line that says what is wrong with the directory and how to mend it.
    """

    def __init__(self, model_dir: Path, *, bundled: bool = False) -> None:
        checkpoint = Checkpoint(model_dir)
        spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
        self._tokenizer = Tokenizer(checkpoint, spec.vocab_size, bundled=bundled)
        templates = read_templates(checkpoint)
        self._info = ModelInfo(
            name=checkpoint.path.resolve().name,
            path=str(checkpoint.path.resolve()),
            architecture=spec.architecture,
            quantization="",
            parameters=0,
            vocab_size=spec.vocab_size,
            max_seq_len=spec.longest_context,
            device="",
            dtype="",
            bos_token=self._tokenizer.named_tokens.get("bos_token", ""),
            eos_token=self._tokenizer.named_tokens.get("eos_token", ""),
            stop_ids=self._tokenizer.stop_ids(checkpoint.config, spec.vocab_size),
            special_tokens=self._tokenizer.special_tokens,
            chat_template=templates.pop(DEFAULT, None),
            named_templates=templates,
            added_tokens=self._tokenizer.added_tokens,
            named_tokens=self._tokenizer.named_tokens,
        )

    @property
    def info(self) -> ModelInfo:
        """As of a loaded model, without what only loading tells: sizes, device and dtype are empty."""
        return self._info

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self._tokenizer.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self._tokenizer.decode(ids, special=special)

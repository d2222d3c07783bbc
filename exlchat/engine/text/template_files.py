"""The chat templates that a model brings along."""

from __future__ import annotations

from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.engine.weights.files import read_text
from exlchat.llm.info import ModelError

DEFAULT = "default"
_FOLDER = "additional_chat_templates"
_MOST = 32
"""Templates of one model; those that are known have up to four."""


def read_templates(checkpoint: Checkpoint) -> dict[str, str]:
    """Jinja sources by name; the one for plain talk is called `default`.

    Files of templates alone count first (`chat_template.jinja` and the folder `additional_chat_templates`), then
    `chat_template.json`, then `tokenizer_config.json`, each of them in the place of those behind it.

    Raises:
        ModelError: a file cannot be read, or holds something else in a template's place.
    """
    found = {}
    own_file = read_text(checkpoint.path / "chat_template.jinja")
    if own_file is not None:
        found[DEFAULT] = own_file
    files = sorted((checkpoint.path / _FOLDER).glob("*.jinja"))
    if len(files) > _MOST:
        raise ModelError(f"{checkpoint.path / _FOLDER}: holds {len(files)} templates; no model has more than {_MOST}")
    for file in files:
        source = read_text(file)
        if source is not None:
            found[file.stem] = source
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = checkpoint.read_json(name).get("chat_template")
        if not found and value is not None:
            found = _templates(checkpoint, name, value)
    return found


def _templates(checkpoint: Checkpoint, where: str, value: object) -> dict[str, str]:
    """One template as text; several as a list of objects with name and template, or as an object by name."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        entries = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, dict)]
        complete = len(entries) == len(value)
    else:
        entries = list(value.items()) if isinstance(value, dict) else []
        complete = isinstance(value, dict)
    named = {name: source for name, source in entries if isinstance(name, str) and isinstance(source, str)}
    if not complete or len(named) < len(entries):
        raise ModelError(
            f"{checkpoint.path / where}: chat_template is neither text nor templates by name; "
            "mend it or take the file from the original model"
        )
    return named

"""Prompt formats of other programs, made into formats of ours: what to write into a file of the user's own.

Read are instruction templates of text-generation-webui (YAML with Jinja, or with its older turn_template) and instruct
presets of SillyTavern (JSON, alone or in a file with other presets). They come from strangers: nothing is run, and the
format that comes out is checked like any other.
"""

from __future__ import annotations

import json

from exlchat.chat.prompt.formats.imported import ImportedFormat, PresetError, text_at
from exlchat.chat.prompt.formats.silly_tavern import instruct_preset
from exlchat.chat.prompt.formats.webui import turn_template
from exlchat.untrusted.text import one_line
from exlchat.untrusted.yaml_reader import YamlError, read_yaml

MOST_CHARACTERS = 50_000

__all__ = ["ImportedFormat", "PresetError", "read_preset"]


def read_preset(text: str) -> ImportedFormat:
    """The format in a file's text.

    Raises:
        PresetError: it is none, or a broken one.
    """
    if len(text) > MOST_CHARACTERS:
        raise PresetError(f"has more than {MOST_CHARACTERS:,} characters; a prompt format is a short text")
    content = _parsed(text)
    if not isinstance(content, dict):
        raise PresetError("holds no instruct preset and no instruction template; give a file of SillyTavern or tgw")
    if isinstance(content.get("instruction_template"), str):
        return ImportedFormat("text-generation-webui", ".jinja", text_at(content, "instruction_template"))
    if isinstance(content.get("turn_template"), str):
        return turn_template(content)
    instruct = content.get("instruct") if isinstance(content.get("instruct"), dict) else content
    if isinstance(instruct, dict) and ("input_sequence" in instruct or "output_sequence" in instruct):
        return instruct_preset(instruct, content)
    if "story_string" in content:
        raise PresetError("is a context preset, which says nothing of turns; give the instruct preset of that name")
    raise PresetError("holds no instruct preset and no instruction template; give a file of SillyTavern or tgw")


def _parsed(text: str) -> object:
    try:
        return json.loads(text) if text.lstrip().startswith("{") else read_yaml(text, most=MOST_CHARACTERS)
    except RecursionError:
        raise PresetError("is nested too deep; a prompt format is a table of strings") from None
    except ValueError as error:
        raise PresetError(f"is broken: {one_line(str(error), 120)}") from None
    except YamlError as error:
        raise PresetError(f"is {error}") from None

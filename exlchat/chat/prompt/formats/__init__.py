"""Prompt formats that come with exlchat: a Jinja file each in this folder, what is known of each in `catalog.py`."""

from __future__ import annotations

from exlchat.chat.prompt.formats.catalog import FORMATS, PLAIN, BuiltIn, guess

__all__ = ["FORMATS", "PLAIN", "BuiltIn", "guess"]

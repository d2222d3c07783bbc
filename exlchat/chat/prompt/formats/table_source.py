"""What a table of strings becomes in Jinja: each string stands in it as quoted literals and cannot become code.

A string may hold names: `{{user}}` and `{{char}}` are who speaks ("User" and "Assistant" where nobody is known),
`{{name}}` is the one whose message it stands around, `{{round}}` the number of questions before this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

USER, ASSISTANT, SYSTEM = "User", "Assistant", "System"
"""What the three are called where nobody is known."""

_MACRO = re.compile(r"\{\{(user|char|name|round)\}\}", re.IGNORECASE)
_ESCAPED = frozenset("{}%#\"'\\")
_SPEAKERS = {"user": "user", "assistant": "char", "system": f"'{SYSTEM}'"}


def named(text: str, names: Mapping[str, object]) -> str:
    """`text` with names in the places of `{{user}}` and `{{char}}`: those of `user_name` and `assistant_name`."""
    values = {"user": names.get("user_name") or USER, "char": names.get("assistant_name") or ASSISTANT}
    return _MACRO.sub(lambda found: str(values.get(found[1].lower(), found[0])), text)


def source_of(content: Mapping[str, Any]) -> str:
    """The Jinja of a table that was checked."""
    said = "message['content']" + (" | trim" if content.get("strip", False) else "")
    opening = content.get("assistant", {}).get("generation_prompt", content.get("assistant", {}).get("prefix", ""))
    spoken_to = _written(opening, "assistant")
    if "generation_prompt" in content.get("names", {}):
        spoken_to = f"{_written(content['names']['generation_prompt'], 'assistant')} if known else {spoken_to}"
    lines = [
        f"{{%- set user = user_name | default('{USER}', true) %}}",
        f"{{%- set char = assistant_name | default('{ASSISTANT}', true) %}}",
        "{%- set known = assistant_name is defined and assistant_name %}",
        "{%- set questions = messages | selectattr('role', 'equalto', 'user') | list | length %}",
        "{%- set count = namespace(said=0, asked=0) %}",
        "{{- " + (_written(content["bos"], "system") if "bos" in content else "bos_token") + " }}",
        *_absent(content),
        "{%- for message in messages %}",
        "    {%- if message['role'] == 'user' %}",
        f"        {{{{- {_around(content, 'user', said)} }}}}",
        "        {%- set count.asked = count.asked + 1 %}",
        "    {%- elif message['role'] == 'assistant' %}",
        f"        {{{{- {_around(content, 'assistant', said)} }}}}",
        "    {%- else %}",
        f"        {{{{- {_around(content, 'system', said)} }}}}",
        "    {%- endif %}",
        "    {%- if message['role'] != 'system' %}{%- set count.said = count.said + 1 %}{%- endif %}",
        "{%- endfor %}",
        f"{{{{- ({spoken_to}) if add_generation_prompt }}}}",
    ]
    return "\n".join(lines) + "\n"


def _absent(content: Mapping[str, Any]) -> list[str]:
    """What stands where a system prompt would, when there is none."""
    system = content.get("system", {})
    text = system.get("without", "")
    if content.get("default_system"):
        text = system.get("prefix", "") + content["default_system"] + system.get("suffix", "")
    return [f"{{{{- ({_written(text, 'system')}) if messages[0]['role'] != 'system' }}}}"] if text else []


def _around(content: Mapping[str, Any], role: str, said: str) -> str:
    part: Mapping[str, str] = content.get(role, {})
    before = _written(part.get("prefix", ""), role)
    if "first_prefix" in part:
        before = f"{_written(part['first_prefix'], role)} if count.said == 0 else {before}"
    if "last_prefix" in part:
        before = f"{_written(part['last_prefix'], role)} if count.asked + 1 == questions else {before}"
    if role != "system" and content.get("names", {}).get("prefix"):
        # A model says the white space behind its name itself.
        said = f"{_written(content['names']['prefix'], role)} ~ (message['content'] | trim) if known else {said}"
    return " ~ ".join([f"({before})", f"({said})", _written(part.get("suffix", ""), role)])


def _written(text: str, role: str) -> str:
    """An expression that is `text`, with names in it."""
    values = {"user": "user", "char": "char", "name": _SPEAKERS[role], "round": "count.asked"}
    parts = _MACRO.split(text)
    written = [values[part.lower()] if place % 2 else _quoted(part) for place, part in enumerate(parts)]
    return " ~ ".join(one for one in written if one != '""') or '""'


def _quoted(text: str) -> str:
    """A literal of Jinja. All that means something to Jinja is escaped: no end of a block can be found inside it."""
    plain = (
        one if one.isascii() and one.isprintable() and one not in _ESCAPED else f"\\U{ord(one):08x}" for one in text
    )
    return '"' + "".join(plain) + '"'

"""Lorebook entries in the two shapes in which SillyTavern writes them: in a card, and in a world file of their own."""

from __future__ import annotations

from typing import Any

_WORLD = {
    "comment": "",
    "constant": False,
    "vectorized": False,
    "selective": True,
    "selectiveLogic": 0,
    "addMemo": True,
    "order": 100,
    "position": 0,
    "disable": False,
    "ignoreBudget": False,
    "excludeRecursion": False,
    "preventRecursion": False,
    "matchPersonaDescription": False,
    "matchCharacterDescription": False,
    "matchCharacterPersonality": False,
    "matchCharacterDepthPrompt": False,
    "matchScenario": False,
    "matchCreatorNotes": False,
    "delayUntilRecursion": False,
    "probability": 100,
    "useProbability": True,
    "depth": 4,
    "outletName": "",
    "group": "",
    "groupOverride": False,
    "groupWeight": 100,
    "scanDepth": None,
    "caseSensitive": None,
    "matchWholeWords": None,
    "useGroupScoring": None,
    "automationId": "",
    "role": None,
    "sticky": 0,
    "cooldown": 0,
    "delay": 0,
    "triggers": [],
    "displayIndex": 0,
    "characterFilter": {"isExclude": False, "names": [], "tags": []},
}
_SAME = ("probability", "useProbability", "depth", "selectiveLogic", "group", "role", "vectorized", "triggers")
_IN_CARD = {
    **{key: key for key in (*_SAME, "sticky", "cooldown", "delay", "position")},
    "displayIndex": "display_index",
    "excludeRecursion": "exclude_recursion",
    "preventRecursion": "prevent_recursion",
    "delayUntilRecursion": "delay_until_recursion",
    "outletName": "outlet_name",
    "groupOverride": "group_override",
    "groupWeight": "group_weight",
    "scanDepth": "scan_depth",
    "caseSensitive": "case_sensitive",
    "matchWholeWords": "match_whole_words",
    "useGroupScoring": "use_group_scoring",
    "automationId": "automation_id",
    "ignoreBudget": "ignore_budget",
    "matchPersonaDescription": "match_persona_description",
    "matchCharacterDescription": "match_character_description",
    "matchCharacterPersonality": "match_character_personality",
    "matchCharacterDepthPrompt": "match_character_depth_prompt",
    "matchScenario": "match_scenario",
    "matchCreatorNotes": "match_creator_notes",
}


def world_entry(keys: list[str], content: str = "It is so.", second: tuple[str, ...] = (), **more: Any) -> Any:
    """An entry of a world file; `more` has its own names."""
    return {"uid": 0, "key": keys, "keysecondary": list(second), "content": content, **_WORLD, **more}


def card_entry(keys: list[str], content: str = "It is so.", second: tuple[str, ...] = (), **more: Any) -> Any:
    """The same as SillyTavern exports it in a card."""
    fields = {**_WORLD, **more}
    return {
        "id": 0,
        "keys": keys,
        "secondary_keys": list(second),
        "comment": fields["comment"],
        "content": content,
        "constant": fields["constant"],
        "selective": fields["selective"],
        "insertion_order": fields["order"],
        "enabled": not fields["disable"],
        "position": "before_char" if fields["position"] == 0 else "after_char",
        "use_regex": True,
        "extensions": {_IN_CARD[key]: value for key, value in fields.items() if key in _IN_CARD},
    }


def world(*entries: Any) -> dict[str, Any]:
    return {"entries": {str(number): {**entry, "uid": number} for number, entry in enumerate(entries)}}


def card(*entries: Any, **book: Any) -> dict[str, Any]:
    character_book = {"name": "World", "extensions": {}, "entries": list(entries), **book}
    data = {"name": "Warden", "first_mes": "Hello.", "extensions": {}, "character_book": character_book}
    return {"spec": "chara_card_v2", "spec_version": "2.0", "data": data}

"""The files that come with a card: how a PNG file carries them, and how cards of PNG and CHARX point to them.

A CHARX file holds them as members and its card writes `embeded://PATH` (with one d). A PNG file holds each in base64 in
a text chunk `chara-ext-asset_:PATH`, and its card writes `__asset:PATH`.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Iterable, Sequence
from typing import Any

from exlchat.chat.personas import charx, png, zip_members
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.png import Chunk
from exlchat.chat.personas.zip_members import LeftOut, Member

CCV3, CHARA = "ccv3", "chara"
"""The keywords under which a PNG file holds the card itself, as V3 and as V2."""

IN_PNG, IN_CHARX = "__asset:", "embeded://"
_KEYWORD = "chara-ext-asset_"
_ICON = "assets/icon/images/main.png"


def is_file_chunk(chunk: Chunk) -> bool:
    return chunk.kind == b"tEXt" and png.keyword_of(chunk).lower().startswith(_KEYWORD)


def files_of_png(found: Iterable[Chunk], where: str) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """The files in the text chunks of a picture, and a line about each kind of those that are left out."""
    files: dict[str, Member] = {}
    left_out = LeftOut(where)
    size = 0
    for chunk in filter(is_file_chunk, found):
        # Older programs write no colon.
        path = png.keyword_of(chunk)[len(_KEYWORD) :].removeprefix(":")
        content = _decoded(chunk) if chunk.whole else None
        if zip_members.is_odd(path) or path == charx.CARD:
            left_out.add(zip_members.ODD_NAME, path)
        elif content is None:
            left_out.add(zip_members.BROKEN, path)
        elif size + len(content) > zip_members.LARGEST_FILE or len(files) >= zip_members.MOST_ENTRIES - 1:
            left_out.add(zip_members.TOO_LARGE, path)
        else:
            size += len(content)
            if files.pop(path, None) is not None:
                left_out.add(zip_members.NAMED_TWICE, path)
            files[path] = zip_members.new_member(path, content, deflate=False)
    return tuple(files.values()), left_out.lines()


def texts_of_files(files: Sequence[Member], where: str) -> tuple[list[tuple[str, bytes]], tuple[str, ...]]:
    """Keyword and text of a chunk for each file, and a line about those whose names no chunk can have."""
    texts = []
    left_out = LeftOut(where)
    for one in files:
        keyword = f"{_KEYWORD}:{one.path}"
        if png.is_keyword(keyword):
            texts.append((keyword, base64.b64encode(zip_members.content(one))))
        else:
            left_out.add("a PNG file has no room for such names; a .charx file has", one.path)
    return texts, left_out.lines()


def pointing(card: dict[str, Any], files: Sequence[Member], scheme: str) -> dict[str, Any]:
    """The card, with every asset that is one of `files` pointed to as `scheme` does, `IN_PNG` or `IN_CHARX`."""
    other = IN_PNG if scheme == IN_CHARX else IN_CHARX
    paths = {one.path for one in files}
    if not any(_path(asset, other) in paths for asset in _assets(card)):
        return card
    changed = copy.deepcopy(card)
    for asset in _assets(changed):
        path = _path(asset, other)
        if path in paths:
            asset["uri"] = f"{scheme}{path}"
    return changed


def picture_of(card: dict[str, Any], files: Sequence[Member]) -> list[Chunk] | None:
    """The chunks of the main icon of a card, if it is among `files` and a whole PNG file."""
    contents = {one.path: one for one in files}
    icons = [one for one in _assets(card) if one.get("type") == "icon"]
    for icon in sorted(icons, key=lambda one: one.get("name") != "main"):
        found = contents.get(_path(icon, IN_CHARX) or _path(icon, IN_PNG) or "")
        if found is not None:
            return _picture(zip_members.content(found))
    return None


def with_icon(
    card: dict[str, Any], files: Sequence[Member], picture: bytes
) -> tuple[dict[str, Any], tuple[Member, ...]] | None:
    """Card and files of a CHARX with `picture` as the main icon, where the card leaves that to the PNG file around it.

    `None` if the card has another icon, or is none of V3.
    """
    data = card.get("data")
    if card.get("spec") != "chara_card_v3" or not isinstance(data, dict) or any(one.path == _ICON for one in files):
        return None
    changed = copy.deepcopy(card)
    icon = {"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}
    icons = [one for one in _assets(changed) if one.get("type") == "icon"]
    if "assets" not in data:
        # What the specification says of a card without any.
        icons = changed["data"]["assets"] = [icon]
    for one in sorted(icons, key=lambda one: one.get("name") != "main")[:1]:
        if one.get("uri") == "ccdefault:":
            one["uri"] = f"{IN_CHARX}{_ICON}"
            return changed, (*files, zip_members.new_member(_ICON, picture, deflate=False))
    return None


def _assets(card: dict[str, Any]) -> list[dict[str, Any]]:
    data = card.get("data")
    assets = data.get("assets") if isinstance(data, dict) else None
    return [one for one in assets if isinstance(one, dict)] if isinstance(assets, list) else []


def _path(asset: dict[str, Any], scheme: str) -> str | None:
    uri = asset.get("uri")
    return uri.removeprefix(scheme) if isinstance(uri, str) and uri.startswith(scheme) else None


def _picture(data: bytes) -> list[Chunk] | None:
    try:
        found, problem = png.chunks(data, "")
    except PersonaError:
        return None
    return found if problem is None else None


def _decoded(chunk: Chunk) -> bytes | None:
    text = b"".join(chunk.data.partition(b"\0")[2].split())
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return None

"""Cards through the file that a persona lies in, and out again in every form: to the last key and sign."""

from __future__ import annotations

import base64
import copy
import io
import json
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.personas.card_writing import CardFile, card_file
from exlchat.chat.personas.files import read_bytes
from exlchat.chat.personas.persona import Persona
from exlchat.chat.personas.toml_file import read_persona, write_text

# Everything that JSON can write, lone surrogates and control characters among it.
any_text = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["", " ", "\r\n", "\r", "\x00", "\x1b[2J", "\x7f\x85\u2028\ufeff", "\ud800", "\udc00x", "'''", '"""', "\\", "é中😀"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-0.0, 1.0, 1e-320, 5e300, 2**53 + 1])
    | any_text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
unknown = st.dictionaries(
    any_text.filter(lambda key: key not in ("spec", "data", "name", "context")), values, max_size=3
)
V1_KEYS = ("description", "personality", "scenario", "mes_example")
V2_KEYS = ("creator_notes", "system_prompt", "post_history_instructions", "creator", "character_version")


def fields(texts: tuple[str, ...], others: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Known fields of a card, missing, empty or of any kind, in any order, with unknown ones between them."""
    known = st.fixed_dictionaries(
        {"name": any_text, "first_mes": any_text}, optional=dict.fromkeys(texts, any_text | values) | others
    )
    return st.builds(lambda one, two: {**two, **one}, known, unknown).flatmap(
        lambda card: st.permutations(list(card.items())).map(dict)
    )


entry = st.builds(
    lambda known, more, extensions: {**more, **known, "extensions": extensions},
    st.fixed_dictionaries(
        {"keys": st.lists(any_text, max_size=2) | values, "content": any_text},
        optional=dict.fromkeys(("enabled", "insertion_order", "priority", "id", "comment", "position"), values),
    ),
    unknown,
    unknown,
)
book = st.builds(
    lambda known, more: {**more, **known},
    st.fixed_dictionaries(
        {"entries": st.lists(entry, max_size=3)},
        optional={"name": values, "scan_depth": values, "token_budget": values, "extensions": values},
    ),
    unknown,
)
EXTENSIONS = (
    st.builds(lambda more, ours: {**more, **ours}, unknown, st.dictionaries(st.just("exlchat"), values)) | values
)
MORE = {
    "alternate_greetings": st.lists(any_text, max_size=3) | values,
    "extensions": EXTENSIONS,
    "character_book": book | values,
    "tags": values,
    "nickname": any_text | values,
    "assets": values,
}


def wrapped(version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda data, more: {
            "spec": f"chara_card_v{version}",
            **more,
            "spec_version": f"{version}.0",
            "data": data,
        },
        fields((*V1_KEYS, *V2_KEYS), MORE),
        unknown,
    )


v1, v2, v3 = fields(V1_KEYS, {}), wrapped(2), wrapped(3)


def exact(value: Any) -> str:
    """JSON text: unlike Python's `==`, it knows the order of keys, 1 from 1.0 from true, and 0.0 from -0.0."""
    return json.dumps(value)


def plain(value: Any) -> Any:
    """As it is once it has been JSON: two half characters in a row are one."""
    return json.loads(json.dumps(value))


def from_disk(data: bytes, where: str = "a.json") -> Persona:
    """Imported, written to a real persona file, and read again."""
    text = write_text(read_bytes(data, where, usual_name="a").persona)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.toml"
        file.write_bytes(text.encode())
        return read_persona(file)


def exported(persona: Persona, kind: CardFile) -> bytes:
    return card_file(persona, kind).data


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        content = data[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", data, place + 8 + length) == (zlib.crc32(kind + content),)
        yield kind, content
        place += 12 + length


def texts_of_png(data: bytes) -> dict[str, bytes]:
    pairs = (content.partition(b"\0") for kind, content in chunks(data) if kind == b"tEXt")
    return {keyword.decode("latin-1"): text for keyword, _, text in pairs}


def in_png(keyword: str, card: Any) -> bytes:
    text = keyword.encode() + b"\0" + base64.b64encode(json.dumps(card).encode())
    grey = card_file(Persona("A"), "png").data[: 8 + 25]
    parts = ((b"tEXt", text), (b"IDAT", zlib.compress(b"\0" * 99)), (b"IEND", b""))
    return grey + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def in_charx(card: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("card.json", json.dumps(card))
    return file.getvalue()


@given(v1 | v2 | v3, st.booleans())
def test_json_comes_back_to_the_letter(card: dict[str, Any], escaped: bool) -> None:
    card = plain(card)
    data = json.dumps(card, ensure_ascii=escaped)
    try:
        raw = data.encode()
    except UnicodeEncodeError:
        raw = json.dumps(card).encode()
    written = exported(from_disk(raw), "json")
    assert exact(json.loads(written.decode())) == exact(card)
    assert exact(json.loads(exported(from_disk(written), "json"))) == exact(card)


@given(v3)
def test_a_charx_comes_back_to_the_letter(card: dict[str, Any]) -> None:
    card = plain(card)
    with zipfile.ZipFile(io.BytesIO(exported(from_disk(in_charx(card), "a.charx"), "charx"))) as archive:
        assert archive.testzip() is None
        assert exact(json.loads(archive.read("card.json"))) == exact(card)


@given(v2, v3)
def test_a_png_comes_back_to_the_letter(older: dict[str, Any], newer: dict[str, Any]) -> None:
    for keyword, card in (("chara", plain(older)), ("ccv3", plain(newer))):
        texts = texts_of_png(exported(from_disk(in_png(keyword, card), "a.png"), "png"))
        assert texts.keys() == {"chara", "ccv3"}
        assert exact(json.loads(base64.b64decode(texts[keyword]))) == exact(card)


EDITS = {
    "first_mes": ("greeting",),
    "description": ("character", "description"),
    "personality": ("character", "personality"),
    "scenario": ("character", "scenario"),
    "system_prompt": ("system",),
    "post_history_instructions": ("character", "post_history"),
    "nickname": ("character", "nickname"),
}


def edited(persona: Persona, where: tuple[str, ...], value: Any) -> Persona:
    """With a key of its file on disk changed, as in an editor."""
    document: Any = tomlkit.parse(write_text(persona))
    table = document
    for key in where[:-1]:
        table = table[key]
    table[where[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.toml"
        file.write_text(tomlkit.dumps(document), encoding="utf-8")
        return read_persona(file)


@given(v2 | v3, st.sampled_from(sorted(EDITS)))
def test_one_edit_is_one_change(card: dict[str, Any], key: str) -> None:
    card = plain(card)
    back = json.loads(exported(edited(from_disk(json.dumps(card).encode()), EDITS[key], "Edited.\nTwice."), "json"))
    expected = copy.deepcopy(card)
    expected["data"][key] = "Edited.\nTwice."
    assert exact(back) == exact(expected)


@given(v1, st.sampled_from(["first_mes", "description", "personality", "scenario"]))
def test_one_edit_of_the_oldest_cards_is_one_change(card: dict[str, Any], key: str) -> None:
    card = plain(card)
    back = json.loads(exported(edited(from_disk(json.dumps(card).encode()), EDITS[key], "Edited."), "json"))
    assert exact(back) == exact({**card, key: "Edited."})


@given(v3, st.lists(entry, min_size=2, max_size=4), st.data())
def test_an_entry_changed_removed_or_put_between_leaves_the_others(
    card: dict[str, Any], entries: list[dict[str, Any]], data: st.DataObject
) -> None:
    # Told apart by what they say, as entries are.
    entries = [{**one, "content": f"{one['content']}{number}"} for number, one in enumerate(entries)]
    card["data"]["character_book"] = {"entries": entries, "x": 1}
    card = plain(card)
    entries = card["data"]["character_book"]["entries"]
    persona = from_disk(json.dumps(card).encode())
    document: Any = tomlkit.parse(write_text(persona))
    tables = document["lorebook"]["entries"]
    place = data.draw(st.integers(0, len(entries) - 1))
    step = data.draw(st.sampled_from(["change", "remove", "add"]))
    if step == "remove":
        del tables[place]
        expected = entries[:place] + entries[place + 1 :]
    elif step == "change":
        tables[place]["content"] = "Edited."
        expected = [*entries[:place], {**entries[place], "content": "Edited."}, *entries[place + 1 :]]
    else:
        tables.insert(place, tomlkit.item({"content": "New.", "keys": ["new"]}))
        expected = [*entries[:place], None, *entries[place:]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.toml"
        file.write_text(tomlkit.dumps(document), encoding="utf-8")
        back = json.loads(exported(read_persona(file), "json"))
    book = back["data"]["character_book"]
    if step == "add":
        assert (book["entries"][place]["content"], book["entries"][place]["keys"]) == ("New.", ["new"])
        book["entries"][place] = None
    card["data"]["character_book"]["entries"] = expected
    assert exact(back) == exact(card)


def test_the_copies_for_older_programs_change_along() -> None:
    """SillyTavern writes every field of V1 twice: at the root and in `data`."""
    data = {"name": "A", "first_mes": "Hi.", "description": "d", "scenario": "s", "creator_notes": "n"}
    card = {**data, "scenario": "another", "creatorcomment": "n", "fav": False, "spec": "chara_card_v2", "data": data}
    del card["creator_notes"]
    persona = from_disk(json.dumps(card).encode())
    for where, key, copied, expected in (
        (("greeting",), "first_mes", "first_mes", "New."),
        (("description",), "creator_notes", "creatorcomment", "New."),
        (("character", "scenario"), "scenario", "scenario", "another"),
    ):
        back = json.loads(exported(edited(persona, where, "New."), "json"))
        assert back == {**card, copied: expected, "data": {**data, key: "New."}}


def test_a_new_name_is_the_name_of_the_speaker_in_the_examples_too() -> None:
    data = {
        "name": "Bo",
        "first_mes": "Hi.",
        "mes_example": "<START>\n{{user}}: Well?\nBo: Hm.",
        "extensions": {"x": 1},
    }
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": data}
    back = json.loads(exported(edited(from_disk(json.dumps(card).encode()), ("name",), "Bobby"), "json"))
    examples = "<START>\n{{user}}: Well?\n{{char}}: Hm."
    assert back == {**card, "data": {**data, "name": "Bobby", "mes_example": examples}}


def test_a_v1_card_that_outgrows_v1_loses_nothing() -> None:
    entry = {"keys": ["k"], "content": "c", "x_entry": [1]}
    book = {"entries": [entry], "x_book": None}
    card = {"name": "A", "char_name": "B", "first_mes": "Hi.", "x": 1, "tags": ["t"], "character_book": book}
    back = json.loads(exported(edited(from_disk(json.dumps(card).encode()), ("thinking",), True), "json"))
    assert back["spec"] == "chara_card_v2"
    assert (back["x"], back["char_name"]) == (1, "B")
    assert back["data"]["character_book"] == book
    assert back["data"]["tags"] == ["t"]
    assert from_disk(json.dumps(back).encode()).thinking is True


def test_what_a_newer_exlchat_keeps_in_a_card_stays() -> None:
    card = {
        "spec": "chara_card_v3",
        "data": {"name": "A", "first_mes": "Hi.", "extensions": {"exlchat": {"future": [1], "thinking": False}}},
    }
    back = json.loads(exported(edited(from_disk(json.dumps(card).encode()), ("thinking",), True), "json"))
    ours = back["data"]["extensions"]["exlchat"]
    assert (ours["future"], ours["thinking"]) == ([1], True)


def test_a_large_card_of_another_script_goes_in_and_out() -> None:
    card = {
        "spec": "chara_card_v2",
        "data": {"name": "文", "first_mes": "文字" * 1_000_000, "description": "語" * 3_000_000},
    }
    raw = json.dumps(card, ensure_ascii=False).encode()
    assert json.loads(exported(from_disk(raw), "json")) == card


@pytest.mark.parametrize("digits", ["1" * 300, "-0.0", "1e-7", "123456789012345678901234567890", "1.0"])
def test_numbers_are_written_as_they_were(digits: str) -> None:
    raw = f'{{"name": "A", "first_mes": "", "n": {digits}}}'.encode()
    assert exact(json.loads(exported(from_disk(raw), "json"))) == exact(json.loads(raw))

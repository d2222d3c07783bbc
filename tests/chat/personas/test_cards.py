"""Character cards: to personas and back without loss, whatever they hold; damaged ones in one line."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exlchat.chat.personas import charx, png
from exlchat.chat.personas.card import card_of_persona, persona_of_card
from exlchat.chat.personas.card_writing import card_file
from exlchat.chat.personas.files import read_bytes, read_file, read_lorebook
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.persona import Character, Example, Persona, PersonaError
from exlchat.chat.personas.toml_file import parse_persona, write_text
from tests.chat.personas.strategies import cards, personas, texts, v2_cards, v3_cards
from tests.patience import within

DATA = {
    "name": "Seraphina",
    "description": "{{char}} is a guardian.",
    "personality": "kind",
    "scenario": "A glade",
    "first_mes": '*You wake.* "Hello."',
    "mes_example": "<START>\n{{user}}: Who are you?\n{{char}}: I am\nSeraphina.\n<START>\nSeraphina: Hush.\n",
    "creator_notes": "Made with care.\nMore.",
    "system_prompt": "",
    "post_history_instructions": "Stay kind.",
    "alternate_greetings": ["Again."],
    "tags": ["fantasy"],
    "creator": "somebody",
    "character_version": "1",
    "extensions": {"talkativeness": "0.5", "depth_prompt": {"prompt": "x", "depth": 4, "role": "system"}},
    "character_book": {
        "name": "Glade",
        "scan_depth": 50,
        "token_budget": 500,
        "recursive_scanning": False,
        "extensions": {},
        "entries": [
            {
                "keys": ["eldoria", "forest"],
                "content": "@@depth 4\nThe forest is old.",
                "extensions": {"position": 1},
                "enabled": True,
                "insertion_order": 100,
                "id": 7,
                "secondary_keys": [],
                "selective": True,
                "constant": False,
                "position": "before_char",
            }
        ],
    },
}
V2 = {"spec": "chara_card_v2", "spec_version": "2.0", "data": DATA}
V3 = {
    "spec": "chara_card_v3",
    "spec_version": "3.0",
    "data": {
        **DATA,
        "nickname": "Sera",
        "group_only_greetings": [],
        "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
    },
}
V1 = {key: DATA[key] for key in ("name", "description", "personality", "scenario", "first_mes", "mes_example")}


def test_a_card_becomes_a_persona() -> None:
    persona = persona_of_card(V3, "card")
    assert replace(persona, foreign={}) == Persona(
        "Seraphina",
        description="Made with care. More.",
        greeting='*You wake.* "Hello."',
        alternate_greetings=("Again.",),
        examples=(Example("Who are you?", "I am\nSeraphina."), Example("", "Hush.")),
        examples_as="system",
        character=Character("Sera", "{{char}} is a guardian.", "kind", "A glade", "Stay kind."),
        lorebook=Lorebook(
            (
                LoreEntry(
                    "@@depth 4\nThe forest is old.",
                    keys=("eldoria", "forest"),
                    selective=True,
                    insertion_order=100,
                    position="before_char",
                ),
            ),
            name="Glade",
            scan_depth=50,
            token_budget=500,
        ),
    )


@given(cards)
def test_a_card_comes_back_as_it_was(card: dict[str, Any]) -> None:
    persona = persona_of_card(card, "card")
    assert card_of_persona(persona) == card
    assert card_of_persona(parse_persona(write_text(persona), "x")) == card


@given(cards)
def test_a_card_comes_back_from_every_kind_of_file(card: dict[str, Any]) -> None:
    persona = persona_of_card(card, "card")
    written = card_file(persona, "json").data
    assert json.loads(written) == card
    assert card_of_persona(read_bytes(written, "a.json", usual_name="a").persona) == card
    newest = read_bytes(card_file(persona, "png").data, "a.png", usual_name="a").persona
    assert card_of_persona(newest) == card_of_persona(persona, 3)
    zipped = read_bytes(card_file(persona, "charx").data, "a.charx", usual_name="a").persona
    assert card_of_persona(zipped) == card_of_persona(persona, 3)


@settings(max_examples=30)
@given(v2_cards | v3_cards)
def test_a_picture_holds_the_card_in_its_own_version_unchanged(card: dict[str, Any]) -> None:
    data = card_file(persona_of_card(card, "card"), "png").data
    found, problem = png.chunks(data, "a")
    keyword = "ccv3" if card["spec"] == "chara_card_v3" else "chara"
    (text,) = png.texts(found, keyword)
    assert problem is None
    assert json.loads(base64.b64decode(text.text)) == card


@given(cards, texts, texts, st.lists(texts, max_size=2).map(tuple))
def test_what_was_changed_is_in_the_card_and_the_rest_as_it_was(
    card: dict[str, Any], system: str, greeting: str, others: tuple[str, ...]
) -> None:
    persona = replace(
        persona_of_card(card, "card"),
        system=system.replace("\r\n", "\n"),
        greeting=greeting.replace("\r\n", "\n"),
        alternate_greetings=tuple(text.replace("\r\n", "\n") for text in others),
    )
    back = card_of_persona(persona)
    assert replace(persona_of_card(back, "card"), foreign={}) == replace(persona, foreign={})
    for holder, before in ((back, card), (back.get("data", {}), card.get("data", card))):
        for key in {"x_unknown", "x_top", "tags"} & before.keys():
            assert holder.get(key, back.get(key)) == before[key]


@given(personas)
def test_any_persona_goes_through_a_card(persona: Persona) -> None:
    """But for its own foreign fields and what one line of a list loses."""
    plain = replace(
        persona,
        name=" ".join("".join(c for c in persona.name if c.isprintable()).split())[:80].strip() or "A",
        description="",
        lorebook=None,
        foreign={},
        **{key: getattr(persona, key).replace("\r\n", "\n") for key in ("system", "greeting")},
        alternate_greetings=tuple(text.replace("\r\n", "\n") for text in persona.alternate_greetings),
    )
    if plain.character is not None:
        changes = {key: getattr(plain.character, key).replace("\r\n", "\n") for key in Character.__slots__}
        plain = replace(plain, character=Character(**changes))
    back = read_bytes(card_file(plain, "png").data, "a.png", usual_name="a").persona
    assert replace(back, foreign={}) == plain


def test_a_changed_entry_of_a_lorebook_keeps_what_others_put_there() -> None:
    persona = persona_of_card(V2, "card")
    assert persona.lorebook is not None
    first = replace(persona.lorebook.entries[0], content="New.")
    changed = replace(persona, lorebook=replace(persona.lorebook, entries=(first, LoreEntry("More.", keys=("m",)))))
    book = card_of_persona(changed)["data"]["character_book"]
    assert book["entries"][0] == {**DATA["character_book"]["entries"][0], "content": "New."}  # type: ignore[index]
    assert book["entries"][1]["content"] == "More."
    assert replace(persona_of_card(card_of_persona(changed), "c"), foreign={}) == replace(changed, foreign={})


def test_for_older_programs_decorators_are_taken_out() -> None:
    older = card_of_persona(persona_of_card(V3, "card"), 2)
    assert older["spec"] == "chara_card_v2"
    assert older["data"]["character_book"]["entries"][0]["content"] == "The forest is old."
    assert "Character Card V3" in older["data"]["creator_notes"]


def test_the_oldest_cards_have_other_names_for_fields() -> None:
    card = {
        "char_name": "Bo",
        "char_persona": "A bear.",
        "char_greeting": "Growl.",
        "world_scenario": "",
        "example_dialogue": "",
    }
    persona = persona_of_card(card, "card")
    assert (persona.name, persona.greeting) == ("Bo", "Growl.")
    assert card_of_persona(replace(persona, greeting="Grr."))["char_greeting"] == "Grr."


def picture(*chunks: png.Chunk) -> bytes:
    first, *middle, last = png.plain_picture(2, 2)
    return png.with_texts([first, *chunks, *middle, last], [])


def encoded(card: Any) -> bytes:
    return base64.b64encode(json.dumps(card).encode())


@pytest.mark.parametrize(
    "chunk",
    [
        png.Chunk(b"tEXt", b"chara\0" + encoded(V2)),
        png.Chunk(b"tEXt", b"Chara\0" + encoded(V2)),
        png.Chunk(b"tEXt", b"chara\0" + encoded(V2)[:50] + b"\r\n" + encoded(V2)[50:]),
        png.Chunk(b"tEXt", b"chara\0" + encoded(V2)[:50] + b"\\r\\n" + encoded(V2)[50:]),
        png.Chunk(b"zTXt", b"chara\0\0" + zlib.compress(encoded(V2))),
        png.Chunk(b"iTXt", b"chara\0\0\0en\0t\0" + encoded(V2)),
        png.Chunk(b"iTXt", b"chara\0\1\0\0\0" + zlib.compress(encoded(V2))),
        png.Chunk(b"tEXt", b"chara\0" + json.dumps(V2).encode()),
    ],
)
def test_every_way_to_put_a_card_into_a_picture_is_read(chunk: png.Chunk) -> None:
    imported = read_bytes(picture(chunk), "a.png", usual_name="a")
    assert imported.persona.name == "Seraphina"
    assert imported.kind == "character card V2, PNG"
    assert imported.notices == ()


def test_ccv3_goes_before_chara_and_chara_stands_in_for_a_damaged_one() -> None:
    old = png.Chunk(b"tEXt", b"chara\0" + encoded(V2))
    assert read_bytes(picture(old, png.Chunk(b"tEXt", b"ccv3\0" + encoded(V3))), "a", usual_name="a").kind.startswith(
        "character card V3"
    )
    imported = read_bytes(picture(old, png.Chunk(b"tEXt", b"ccv3\0!!!!")), "a", usual_name="a")
    assert imported.kind == "character card V2, PNG"
    assert "damaged" in imported.notices[0]


def test_a_picture_keeps_its_other_chunks_and_loses_old_cards() -> None:
    data = picture(png.Chunk(b"tEXt", b"Author\0me"), png.Chunk(b"zTXt", b"CHARA\0\0" + zlib.compress(b"x")))
    written = card_file(persona_of_card(V2, "c"), "png", picture=data).data
    found, problem = png.chunks(written, "a")
    assert problem is None
    assert all(chunk.whole for chunk in found)
    assert [text.text for text in png.texts(found, "author")] == [b"me"]
    assert len(png.texts(found, "chara")) == 1
    assert found[-1].kind == b"IEND"


def zipped(files: dict[str, bytes], change: Callable[[bytes], bytes] = lambda data: data) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return change(file.getvalue())


CARD = json.dumps(V3).encode()


def encrypted(data: bytes) -> bytes:
    place = data.rindex(b"PK\x01\x02")
    return data[: place + 8] + b"\x01\x00" + data[place + 10 :]


def chunk_bytes(kind: bytes, data: bytes, checksum: int | None = None) -> bytes:
    crc = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


DEEP = b"[" * 1000 + b"]" * 1000
BOMB = zlib.compress(b"\0" * 200_000_000, 9)
DAMAGED = {
    "not a card": b'{"a": 1}',
    "a list": b"[1, 2]",
    "a thousand levels": b'{"name": "x", "first_mes": "y", "x": ' + DEEP + b"}",
    "a hundred thousand levels": b"[" * 100_000,
    "a number too long": b'{"name": "x", "first_mes": "y", "n": ' + b"9" * 100_000 + b"}",
    "not a number": b'{"name": "x", "first_mes": "y", "n": NaN}',
    "infinity": b'{"name": "x", "first_mes": "y", "n": 1e999}',
    "cut JSON": b'{"name": "x", "first_mes": "y"',
    "latin-1": '{"name": "é", "first_mes": ""}'.encode("latin-1"),
    "huge JSON": b'{"name": "' + b"x" * 17_000_000 + b'"}',
    "data is a list": b'{"spec": "chara_card_v2", "data": []}',
    "nothing": b"",
    "zeros": b"\0" * 1000,
    "only the signature": png.SIGNATURE,
    "a picture without a card": picture(),
    "a bomb": picture(png.Chunk(b"zTXt", b"chara\0\0" + BOMB)),
    "many bombs": picture(*[png.Chunk(b"zTXt", b"ccv3\0\0" + BOMB)] * 50),
    "broken zlib": picture(png.Chunk(b"zTXt", b"chara\0\0garbage")),
    "cut zlib": picture(png.Chunk(b"zTXt", b"chara\0\0" + zlib.compress(encoded(V2))[:-20])),
    "unknown packing": picture(png.Chunk(b"zTXt", b"chara\0\7abc")),
    "not base64": picture(png.Chunk(b"tEXt", b"chara\0\xff\xfe")),
    "no text at all": picture(png.Chunk(b"tEXt", b"chara")),
    "deep in a picture": picture(png.Chunk(b"tEXt", b"chara\0" + base64.b64encode(DEEP))),
    "wrong checksum": png.SIGNATURE + chunk_bytes(b"tEXt", b"chara\0" + encoded(V2), 1) + chunk_bytes(b"IEND", b""),
    "a length beyond the end": png.SIGNATURE + struct.pack(">I", 2**31) + b"tEXtchara",
    "a chunk without letters": png.SIGNATURE + chunk_bytes(b"\0\0\0\0", b""),
    "too many chunks": png.SIGNATURE + chunk_bytes(b"abcd", b"") * 150_000,
    "no card.json": zipped({"other.json": CARD}),
    "card.json elsewhere": zipped({"folder/card.json": CARD}),
    "a way out": zipped({"card.json": CARD, "../../evil": b"x"}),
    "an absolute way": zipped({"card.json": CARD, "/etc/evil": b"x"}),
    "a drive": zipped({"card.json": CARD, "C:\\evil": b"x"}),
    "a zip bomb": zipped({"card.json": b" " * 15_000_000}),
    "a large zip bomb": zipped({"card.json": b" " * 100_000_000}),
    "encrypted": zipped({"card.json": CARD}, encrypted),
    "a cut archive": zipped({"card.json": CARD}, lambda data: data[:-30]),
    "a broken archive": zipped({"card.json": CARD}, lambda data: data[:60] + b"\0" * 200 + data[260:]),
    "too many files": zipped({"card.json": CARD}, lambda data: data[:-12] + struct.pack("<H", 60_000) + data[-10:]),
    "a lorebook": b'{"spec": "lorebook_v3", "data": {"entries": []}}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_card_is_one_line_within_a_second(name: str) -> None:
    with within(1), pytest.raises(PersonaError) as caught:
        read_bytes(DAMAGED[name], "evil\x1b[2J.png", usual_name="evil")
    line = str(caught.value)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 300


@given(st.sampled_from(["png", "charx", "json"]), st.data())
def test_a_card_with_broken_bytes_is_read_or_refused(kind: Any, data: st.DataObject) -> None:
    whole = bytearray(card_file(persona_of_card(V3, "c"), kind).data)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for damaged in (bytes(whole), bytes(whole[:cut])):
        with contextlib.suppress(PersonaError):
            read_bytes(damaged, "a", usual_name="a")


def test_a_cut_picture_whose_card_is_whole_is_taken_with_a_line() -> None:
    data = picture(png.Chunk(b"tEXt", b"chara\0" + encoded(V2)))[:-20]
    imported = read_bytes(data, "a.png", usual_name="a")
    assert imported.persona.name == "Seraphina"
    assert "cut off" in imported.notices[0]
    assert imported.picture is None


def test_a_newer_card_is_taken_with_a_line() -> None:
    imported = read_bytes(json.dumps({**V3, "spec_version": "3.7"}).encode(), "a.json", usual_name="a")
    assert "3.7" in imported.notices[0]


def test_an_archive_is_the_same_each_time() -> None:
    assert charx.write(CARD) == charx.write(CARD)


WEBUI = """\
name: Chiharu
greeting: |-
  *waves*
  Hi {{user}}!
context: |
  {{char}} builds computers.
your_name: Anon
"""


def test_a_text_generation_webui_character() -> None:
    persona = read_bytes(WEBUI.encode(), "Chiharu.yaml", usual_name="Chiharu").persona
    assert persona.name == "Chiharu"
    assert persona.system == "{{char}} builds computers."
    assert persona.greeting == "*waves*\nHi {{user}}!"
    assert persona.foreign["webui_user"] == "Anon"
    as_json = json.dumps({"bot": "Chiharu", "context": "c", "greeting": "g"}).encode()
    assert read_bytes(as_json, "a.json", usual_name="a").kind == "text-generation-webui character"


def test_values_of_a_character_are_those_of_yaml_1_2() -> None:
    text = "name: yes\ncontext: 2024-01-01\ngreeting: 007\n"
    persona = read_bytes(text.encode(), "a.yaml", usual_name="a").persona
    assert (persona.name, persona.system, persona.greeting) == ("yes", "2024-01-01", "007")


ROLE = """---
model: openai:gpt-4
temperature: 0.2
use_tools: fs
---
Convert to emoji. It is {{__now__}}.
### INPUT:
I like cats
### OUTPUT:
😺
### INPUT:
rain
### OUTPUT:
🌧
"""


def test_an_aichat_role() -> None:
    imported = read_bytes(ROLE.encode(), "emoji.md", usual_name="emoji")
    persona = imported.persona
    assert persona.name == "emoji"
    assert persona.system == "Convert to emoji. It is {{isodate}} {{isotime}}."
    assert persona.examples == (Example("I like cats", "😺"), Example("rain", "🌧"))
    assert persona.sampling.temperature == 0.2
    assert persona.model == "openai:gpt-4"
    assert imported.notices == ("emoji.md: kept, not followed: use_tools",)
    plain = read_bytes(b"Only a prompt.\n### INPUT:\nx\n", "a.md", usual_name="a").persona
    assert plain.examples == ()
    assert plain.system.startswith("Only a prompt.")


@pytest.mark.parametrize(("written", "value"), [("1e-2", 0.01), (".5", 0.5), ("0.7", 0.7), ("1", 1.0), ("0x1", 1.0)])
def test_numbers_of_an_aichat_role(written: str, value: float) -> None:
    imported = read_bytes(f"---\ntemperature: {written}\n---\nx".encode(), "a.md", usual_name="a")
    assert imported.persona.sampling.temperature == value


def test_lines_of_an_aichat_role_are_counted_as_in_its_file() -> None:
    with pytest.raises(PersonaError, match=r"^a\.md: YAML with a reference \(\*b, line 3\)"):
        read_bytes(b"---\nmodel: a\ntop_p: *b\n---\nx", "a.md", usual_name="a")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nname: *b\n"),
        ("a.yaml", "name: " + "[" * 1000),
        ("a.yaml", "!!python/object/apply:os.system ['touch /tmp/evil']"),
        ("a.yaml", "name: x\ncontext: y\nname: z\n"),
        ("a.yaml", "name: x: y"),
        ("a.yaml", "- a\n- b"),
        ("a.yaml", "x" * 300_000),
        ("a.yaml", ""),
        ("a.md", "---\na: [\n---\nx"),
        ("a.md", "---\ntemperature: -3\n---\nx"),
        ("a.md", "---\na: 1\n---\n"),
        ("a.md", ""),
        ("a.txt", "hello"),
    ],
)
def test_other_damaged_files_are_one_line_within_a_second(name: str, data: str) -> None:
    with within(1), pytest.raises(PersonaError) as caught:
        read_bytes(data.encode(), name, usual_name="a")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_one_that_is_no_file(tmp_path: Path) -> None:
    for path, wrong in ((tmp_path / "none.png", "there is no such file"), (tmp_path, "not a plain file; give one")):
        with pytest.raises(PersonaError) as caught:
            read_file(path)
        assert str(caught.value).endswith(f"{path.name}: {wrong}")


def test_a_lorebook_alone(tmp_path: Path) -> None:
    file = tmp_path / "lore.json"
    book = {"entries": [{"keys": ["a"], "content": "b", "enabled": True, "insertion_order": 0}]}
    for content in ({"spec": "lorebook_v3", "data": book}, book, {"entries": {"0": {"key": ["a"], "content": "b"}}}):
        file.write_text(json.dumps(content))
        assert read_lorebook(file)[0].entries[0] == LoreEntry("b", keys=("a",))
    file.write_text("{}")
    with pytest.raises(PersonaError, match="no entries"):
        read_lorebook(file)

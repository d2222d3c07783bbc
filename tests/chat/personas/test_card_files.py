"""The pictures, sounds and whatever else comes with a card, in CHARX and PNG: in and out byte for byte, or one line."""

from __future__ import annotations

import base64
import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.personas import png, zip_members
from exlchat.chat.personas.card_writing import card_file
from exlchat.chat.personas.files import ImportedPersona, read_bytes
from exlchat.chat.personas.persona import PersonaError
from tests.chat.personas.test_lossless import texts_of_png
from tests.patience import within

ICON = png.with_texts(png.plain_picture(3, 5), [])


def asset(uri: str, name: str = "main", kind: str = "icon") -> dict[str, str]:
    return {"type": kind, "uri": uri, "name": name, "ext": "png"}


def card(*assets: dict[str, str]) -> dict[str, Any]:
    data = {"name": "Ada", "first_mes": "Hi.", "assets": list(assets), "extensions": {}}
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}


Listed = Mapping[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]]


def charx(files: Listed, value: Any = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("card.json", json.dumps(value or card()))
        for name, data in files.items() if isinstance(files, Mapping) else files:
            archive.writestr(name, data)
    return file.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    """What Python's own reader of archives finds, checksums compared."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {one.filename: archive.read(one) for one in archive.infolist()}


def imported(data: bytes, where: str = "a.charx") -> ImportedPersona:
    return read_bytes(data, where, usual_name="a")


def through(data: bytes, kind: Any, where: str = "a.charx") -> tuple[bytes, tuple[str, ...]]:
    """Imported, the files kept as they are kept on disk, and written as another file."""
    one = imported(data, where)
    kept = zip_members.write(one.files)
    files, left_out = zip_members.kept(kept, zip_members.entries(kept, "kept"), "kept")
    assert left_out == ()
    made = card_file(one.persona, kind, picture=one.picture, files=files)
    return made.data, (*one.notices, *made.notices)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=30).filter(
    lambda name: not zip_members.is_odd(name) and name != "card.json"
)


@given(st.dictionaries(names, st.binary(max_size=300), max_size=5), st.sampled_from([0, 8]))
def test_every_file_of_a_charx_comes_back(files: dict[str, bytes], method: int) -> None:
    data, notices = through(charx(files, method=method), "charx")
    assert notices == ()
    assert contents(data) == {"card.json": json.dumps(card()).encode(), **files}
    assert through(data, "charx")[0] == data


def test_names_keep_their_bytes_and_files_stay_packed() -> None:
    """A name of another script without the mark of UTF-8, as old packers write it."""
    raw = charx({"assets/@@.png": b"x" * 5_000, "empty/": b"", "module.risum": bytes(range(256))})
    raw = raw.replace(b"@@", "日".encode("sjis"))
    data, notices = through(raw, "charx")
    assert notices == ()
    assert contents(data) == contents(raw)
    assert data.count("assets/日.png".encode("sjis")) == 2
    assert len(data) < 1_500


def test_a_charx_behind_a_picture_keeps_its_files_and_says_what_it_does_not_keep() -> None:
    front = b"\xff\xd8\xff\xe0" + b"jpeg" * 100
    data, notices = through(front + charx({"a.bin": b"1"}), "charx")
    assert contents(data)["a.bin"] == b"1"
    assert notices == ("a.charx: the picture in front of the archive is not kept; what is in the archive is",)


def info(name: str, mode: int = 0) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def patched(name: str, offset: int, value: bytes) -> Callable[[bytes], bytes]:
    """Bytes of a file's entry in the directory replaced."""

    def change(data: bytes) -> bytes:
        place = data.rindex(b"PK\x01\x02", 0, data.rindex(name.encode()))
        return data[: place + offset] + value + data[place + offset + len(value) :]

    return change


def same(data: bytes) -> bytes:
    return data


BOMB = b"\0" * 30_000_000
LEFT_OUT: dict[str, tuple[Listed, Callable[[bytes], bytes], str]] = {
    "encrypted": ({"bad.bin": b"x"}, patched("bad.bin", 8, b"\1\0"), "encrypted"),
    "a link": ([(info("bad.bin", stat.S_IFLNK | 0o777), b"/etc/passwd")], same, "links to other files"),
    "a bomb": ({"bad.bin": BOMB}, same, "they grow too much when unpacked"),
    "a bomb that hides its size": ({"bad.bin": BOMB}, patched("bad.bin", 24, struct.pack("<I", 1000)), "broken"),
    "a wrong checksum": ({"bad.bin": b"x"}, patched("bad.bin", 16, b"abcd"), "broken"),
    "a wrong place": ({"bad.bin": b"x"}, patched("bad.bin", 42, struct.pack("<I", 5)), "broken"),
    "a second name": ({"bad.bin": b"x"}, lambda data: data.replace(b"bad.bin", b"bed.bin", 1), "broken"),
    "packed by another method": ([("bad.bin", b"x" * 99)], patched("bad.bin", 10, b"\x0e\0"), "is not read here"),
    "control characters": ({"bad\x1b[2J.bin": b"x"}, same, "oddly named"),
    "a name without end": ({"bad" * 500: b"x"}, same, "oddly named"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_file_that_is_a_trick_is_left_out_with_one_line(name: str) -> None:
    files, change, reason = LEFT_OUT[name]
    listed = list(files.items()) if isinstance(files, Mapping) else files
    data = change(charx([*listed, ("good.bin", b"good")]))
    with within(1):
        written, notices = through(data, "charx")
    assert contents(written).keys() == {"card.json", "good.bin"}
    assert len(notices) == 1
    assert notices[0].startswith("a.charx: 1 file in it is left out: ")
    assert reason in notices[0]
    assert "\x1b" not in notices[0]
    assert len(notices[0]) < 200


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_files_with_one_name_the_last_is_kept() -> None:
    written, notices = through(charx([("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"4")]), "charx")
    assert contents(written) == {"card.json": json.dumps(card()).encode(), "a": b"4", "b": b"2"}
    assert notices == ("a.charx: 2 files in it are left out: older ones of the same name ('a', ...)",)


def test_all_files_together_are_bounded() -> None:
    piece = bytes(1_000_000)
    packed = zlib.compressobj(wbits=-15)
    stream = packed.compress(piece) + packed.flush()
    one = zip_members.Member(b"", False, True, zlib.crc32(piece), len(piece), stream + bytes(10_000 - len(stream)))
    files = [zip_members.new_member("card.json", json.dumps(card()).encode(), deflate=False)]
    files += [replace(one, name=b"%d" % number) for number in range(300)]
    with within(5):
        kept = imported(zip_members.write(files))
    assert sum(file.size for file in kept.files) == 256_000_000
    assert kept.notices == ("a.charx: 44 files in it are left out: larger than 256 MB together ('256', ...)",)


def test_files_that_are_unpacked_in_vain_count_as_well() -> None:
    """Or an archive of wrong checksums would keep the program busy for minutes."""
    one = zip_members.new_member("a", bytes(40_000_000) + bytes(range(256)) * 1_000, deflate=True)
    one = replace(one, checksum=1, packed=one.packed + bytes(max(0, one.size // 199 - len(one.packed))))
    files = [zip_members.new_member("card.json", json.dumps(card()).encode(), deflate=False)]
    files += [replace(one, name=b"%d" % number) for number in range(200)]
    data = zip_members.write(files)
    with within(2):
        kept = imported(data)
    assert kept.files == ()
    assert kept.notices == (
        "a.charx: 6 files in it are left out: broken ('0', ...)",
        "a.charx: 194 files in it are left out: larger than 256 MB together ('6', ...)",
    )


def test_files_too_large_for_a_picture_are_told_where_they_fit() -> None:
    huge = zip_members.new_member("a", bytes(200_000_000), deflate=False)
    persona = imported(charx({})).persona
    with pytest.raises(PersonaError, match=r"too large for a PNG file; export it as \.charx"):
        card_file(persona, "png", files=(huge,))


def test_files_that_lie_over_each_other_are_refused() -> None:
    """The bomb that needs no depth: thousands of entries, one and the same stream."""
    data = charx({"a": b"1" * 100_000, "b": b"2" * 100_000}, method=zipfile.ZIP_STORED)
    place = data.rindex(b"PK\x01\x02")
    first = data.index(b"PK\x01\x02")
    entry = data[place : data.rindex(b"PK\x05\x06")]
    end = struct.pack("<HHHHIIH", 0, 0, 503, 503, place - first + 501 * len(entry), first, 0)
    crowded = data[:place] + entry * 501 + b"PK\x05\x06" + end
    with pytest.raises(PersonaError, match="lie over each other"):
        imported(crowded)


@given(st.data())
def test_an_archive_with_broken_bytes_gives_whole_files_or_a_line(data: st.DataObject) -> None:
    files = {"a.bin": b"abc" * 30, "b/c.bin": bytes(range(200))}
    whole = bytearray(charx(files))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = imported(bytes(whole))
    except PersonaError:
        return
    kept = {zip_members.content(one) for one in found.files}
    assert kept <= set(files.values())
    assert found.notices or len(kept) == len(files)


def png_card(value: Any, *chunks: tuple[bytes, bytes]) -> bytes:
    texts = [("ccv3", base64.b64encode(json.dumps(value).encode()))]
    first, *rest = png.plain_picture(2, 2)
    return png.with_texts([first, *(png.Chunk(kind, data) for kind, data in chunks), *rest], texts)


def asset_chunk(name: str, data: bytes) -> tuple[bytes, bytes]:
    return b"tEXt", name.encode("latin-1") + b"\0" + base64.b64encode(data)


def test_the_files_in_a_picture_come_back_and_the_picture_is_kept_alone() -> None:
    value = card(asset("__asset:0"), asset("__asset:Dir/B\xe9.png", "sad", "emotion"))
    files = (
        asset_chunk("chara-ext-asset_:0", b"zero"),
        asset_chunk("chara-ext-asset_:Dir/B\xe9.png", bytes(range(256))),
    )
    data = png_card(value, *files, (b"tEXt", b"Author\0me"))
    one = imported(data, "a.png")
    assert one.picture is not None
    assert texts_of_png(one.picture) == {"Author": b"me"}
    written, notices = through(data, "png", "a.png")
    assert notices == ()
    texts = texts_of_png(written)
    assert base64.b64decode(texts["chara-ext-asset_:0"]) == b"zero"
    assert base64.b64decode(texts["chara-ext-asset_:Dir/B\xe9.png"]) == bytes(range(256))
    assert texts["Author"] == b"me"
    assert json.loads(base64.b64decode(texts["ccv3"])) == value


def test_odd_and_broken_files_in_a_picture_are_left_out_with_a_line() -> None:
    data = png_card(
        card(),
        asset_chunk("chara-ext-asset_5", b"old"),
        asset_chunk("Chara-Ext-Asset_:../../evil", b"x"),
        asset_chunk("chara-ext-asset_:card.json", b"x"),
        asset_chunk("chara-ext-asset_:", b"x"),
        (b"tEXt", b"chara-ext-asset_:b\0!!!"),
        (b"tEXt", b"chara-ext-asset_:c"),
    )
    one = imported(data, "a.png")
    assert [(file.path, zip_members.content(file)) for file in one.files] == [("5", b"old"), ("c", b"")]
    assert one.notices == (
        "a.png: 3 files in it are left out: oddly named ('../../evil', ...)",
        "a.png: 1 file in it is left out: broken ('b')",
    )


def test_from_charx_to_png_and_back_pointers_follow_the_files() -> None:
    value = card(
        asset("embeded://assets/icon/a.png"),
        asset("embeded://not/there.png", "x", "x_other"),
        asset("https://example.org/a.png", "y"),
        asset("ccdefault:", "z"),
    )
    raw = charx({"assets/icon/a.png": ICON, "notes.json": b"{}"}, value)
    as_png, notices = through(raw, "png")
    assert notices == ()
    texts = texts_of_png(as_png)
    uris = [one["uri"] for one in json.loads(base64.b64decode(texts["ccv3"]))["data"]["assets"]]
    assert uris == ["__asset:assets/icon/a.png", "embeded://not/there.png", "https://example.org/a.png", "ccdefault:"]
    assert as_png[8:33] == ICON[8:33], "the main icon is the picture"
    back, notices = through(as_png, "charx", "a.png")
    assert notices == ()
    assert contents(back) == contents(raw)


def test_a_name_that_no_picture_can_hold_is_a_line() -> None:
    raw = charx({"assets/" + "long" * 20: b"1", "日": b"2", "short": b"3"})
    written, notices = through(raw, "png")
    assert [name for name in texts_of_png(written) if ":" in name] == ["chara-ext-asset_:short"]
    assert len(notices) == 1
    assert "2 files in it are left out: a PNG file has no room for such names" in notices[0]


@pytest.mark.parametrize("value", [card(), card(asset("ccdefault:", "x", "icon"))])
def test_the_picture_of_a_card_is_the_icon_in_a_charx(value: dict[str, Any]) -> None:
    if not value["data"]["assets"]:
        del value["data"]["assets"]
    written, notices = through(png_card(value, asset_chunk("chara-ext-asset_:0", b"zero")), "charx", "a.png")
    assert notices == ()
    found = contents(written)
    assert json.loads(found["card.json"])["data"]["assets"][0]["uri"] == "embeded://assets/icon/images/main.png"
    assert found["assets/icon/images/main.png"] == imported(png_card(value), "a.png").picture
    assert found["0"] == b"zero"
    assert through(written, "charx") == (written, ())
    assert through(written, "png")[0][8:33] == png_card(value)[8:33]


def test_a_card_with_another_icon_keeps_that_in_a_charx() -> None:
    value = card(asset("https://example.org/a.png"))
    written, notices = through(png_card(value), "charx", "a.png")
    assert contents(written) == {"card.json": json.dumps(value).encode()}
    assert notices == ("Ada: the picture is left out: the card has another icon",)


def test_an_icon_that_is_no_whole_picture_is_not_taken_for_one() -> None:
    for icon in (b"GIF89a", ICON[:-20], png.SIGNATURE):
        written, _ = through(charx({"i.png": icon}, card(asset("embeded://i.png"))), "png")
        assert png.chunks(written, "a")[1] is None


@pytest.mark.parametrize("data", [b"\xff\xd8\xff\xe0 jpeg", b"GIF89a..", b"RIFF\0\0\0\0WEBPVP8 "])
def test_another_picture_is_called_one(data: bytes) -> None:
    with pytest.raises(PersonaError, match="a picture without a character card in it"):
        imported(data, "a.webp")

"""What was typed can be read on the screen: no text vanishes, in any order of constructs and at any width."""

import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from exlchat.ui.render.markdown.styles import TARGET
from exlchat.untrusted.sanitize import printable
from tests.ui.markdown.test_streaming import at_once, texts
from tests.ui.markdown.texts import markdown_texts, tex_texts

COMMAND = re.compile(r"\\[A-Za-z]+")


def letters(text: str) -> list[str]:
    """Letters but x, which is markup in a ticked task."""
    return [character for character in text if character.isalpha() and character != "x"]


def as_plain(text: str) -> str:
    """R for ℝ, v for 𝐯 and ᵥ."""
    return unicodedata.normalize("NFKD", text)


def is_subsequence(short: list[str], long: list[str]) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


@given(text=markdown_texts)
def test_all_letters_are_shown_in_order(text: str) -> None:
    shown = "".join(texts(at_once(text, 10_000)))
    assert is_subsequence(letters(printable(text)), letters(shown))


@given(text=markdown_texts, width=st.integers(8, 60))
def test_at_any_width_all_letters_are_shown_and_no_line_is_wider(text: str, width: int) -> None:
    lines = texts(at_once(text, width))
    missing = Counter(letters(printable(text))) - Counter(letters("".join(lines)))
    assert not missing
    assert all(cell_len(line) <= width for line in lines)


@given(text=tex_texts, width=st.integers(8, 60))
def test_of_formulas_only_names_of_commands_are_exchanged(text: str, width: int) -> None:
    lines = texts(at_once(text, width))
    typed = letters(as_plain(COMMAND.sub(" ", printable(text))))
    assert not Counter(typed) - Counter(letters(as_plain("".join(lines))))
    assert all(cell_len(line) <= width for line in lines)
    assert not set("".join(lines)) & set("\x1b\x00\u202e")


@given(text=st.text(), width=st.integers(8, 60))
def test_plain_text_is_shown_as_typed(text: str, width: int) -> None:
    lines = texts(at_once(text, width, role="user"))
    typed = [character for character in printable(text) if not character.isspace() and character != "\u200d"]
    assert [character for character in "".join(lines) if not character.isspace() and character != "\u200d"] == typed


@pytest.mark.parametrize(
    "text",
    [
        "use <div> and List<int> here",
        "std::vector<std::string> and <std::map>",
        "<think>hm</think>",
        r"the sum \(x_1 *\unknown* z\) and \[a_i & b * c * d\]",
        r"sets \{a, b\} end with \\",
        "&lt; is an entity &copy;",
        "[ref]: http://host and [text][ref]",
        "$$a*b*c&$$",
        "snake_case_name and 2 * 3 * 4",
        "C:\\Users\\name",
        "<https://host.org/a_b_c>",
    ],
)
def test_text_that_only_looks_like_markup_is_shown_as_typed(text: str) -> None:
    assert texts(at_once(text, 200)) == [text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo", ["one", "two"]),
        ("one  \ntwo", ["one", "two"]),
        ("one\n\ntwo", ["one", "", "two"]),
        (r"\*stars\* and \# and \_", ["*stars* and # and _"]),
        ("**bold** *em* ~~gone~~ `code`", ["bold em gone code"]),
        ("[docs](https://host.org/d)", ["docs (https://host.org/d)"]),
        ("[https://host.org](https://host.org)", ["https://host.org"]),
        ('[docs](https://host.org "The title")', ['docs (https://host.org "The title")']),
        ("![a cat](cat.png)", ["a cat (cat.png)"]),
        ("[run](javascript:alert)", ["[run](javascript:alert)"]),
        ("# Title\ntext", ["Title", "", "text"]),
        ("Title\n===\ntext", ["Title", "", "text"]),
        ("- a\n- b\n  - c\n\n- d", ["• a", "• b", "  • c", "", "• d"]),
        ("1. a\n   ```\n   ```\n2. b", ["1. a", "", " " * 200, "", "2. b"]),
        ("9. a\n10. b", ["9. a", "10. b"]),
        ("1. a\n1. b\n1. c", ["1. a", "2. b", "3. c"]),
        ("3) a\n5) b", ["3) a", "5) b"]),
        ("- [ ] open\n- [x] done", ["☐ open", "☑ done"]),
        ("> a\n> > b", ["│ a", "│ ", "│ │ b"]),
        ("Steps:\n- a", ["Steps:", "• a"]),
        ("    indented\n\n    code", ["indented", "", "code"]),
        ("| a | b |\n|---|--:|\n| 1 | 22 |", ["a │  b", "──┼───", "1 │ 22"]),
        ("| a | b |\n|---|---|\n| 1 | 2 | 3 |", ["a │ b    ", "──┼──────", "1 │ 2 | 3"]),
        ("| a | b |\n|---|---|\n| 1 |", ["a │ b", "──┼──", "1 │  "]),
        ("| `a\\|b` | c |\n|---|---|", ["a|b │ c", "────┼──"]),
    ],
)
def test_constructs(text: str, shown: list[str]) -> None:
    lines = texts(at_once(text, 200))
    if text.startswith("    "):
        lines = [line.rstrip() for line in lines]
    assert lines == shown


def test_where_links_lead_is_known_to_the_mouse_and_no_escape_sequence() -> None:
    text = "[a *b*](https://host.org/a) https://host.org/b ![c](d.png) [e](https://host.org/f 'g')"
    found: dict[str | None, list[str]] = {}
    for segment in at_once(text, 200).lines[0]:
        assert segment.style is not None
        assert "]8;" not in segment.style.render(segment.text)
        found.setdefault(segment.style.meta.get(TARGET), []).append(segment.text)
    assert {target: "".join(parts) for target, parts in found.items()} == {
        "https://host.org/a": "a b (https://host.org/a)",
        "https://host.org/b": "https://host.org/b",
        "d.png": "c (d.png)",
        "https://host.org/f": 'e (https://host.org/f "g")',
        None: "   ",
    }


def test_a_fence_keeps_its_label_and_all_its_lines() -> None:
    lines = texts(at_once("```rust title=x\nfn a() {\n\n    b();\n}\n```", 40))
    assert [line.rstrip() for line in lines] == ["rust title=x", "fn a() {", "", "    b();", "}"]
    assert {cell_len(line) for line in lines} == {40}


def test_deep_nesting_keeps_the_text() -> None:
    text = "> " * 200 + "deep"
    assert "deep" in "".join(texts(at_once(text, 40)))
    nested = "\n".join("  " * depth + f"- level{depth}" for depth in range(60))
    assert all(f"level{depth}" in "".join(texts(at_once(nested, 200))) for depth in range(60))


def test_a_table_too_wide_wraps_its_cells_and_one_too_narrow_becomes_records() -> None:
    table = "| name | what |\n|---|---|\n| alpha | a long text in a cell |\n| beta | short |"
    wide = texts(at_once(table, 24))
    assert all(cell_len(line) <= 24 for line in wide)
    assert wide[0].startswith("name  │ what")
    assert [line.rstrip() for line in texts(at_once(table, 12))][:2] == ["name: alpha", "what: a long"]

"""Files to read: what is in them, and what of a conversation can never act in them."""

from __future__ import annotations

import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from exlchat.chat.exchange.branch import active_branch
from exlchat.chat.exchange.html_page import rendered
from exlchat.chat.exchange.writing import Format, written
from exlchat.chat.model import AnswerRecord, ConversationTree, Message
from exlchat.llm.sampling import SamplingSettings
from tests.chat.exchange.trees import imported, said, trees
from tests.patience import within

RECORD = AnswerRecord("tiny-4bpw", "chatml", SamplingSettings(), None, None)
TREE = ConversationTree(
    "Owls & <others>",
    1700000000.0,
    1700000100.0,
    "a2",
    (
        Message("s", None, "system", "Be brief.", 1700000000.0),
        Message("q", "s", "user", "How many *owls* at <https://owls.example>?\nTell.", 1700000001.0),
        Message("a1", "q", "assistant", "Three.", 1700000002.0, record=RECORD),
        Message("gone", "q", "assistant", "Gone.", 1700000002.5, deleted=True),
        Message(
            "a2",
            "q",
            "assistant",
            "Two:\n\n```python\nprint('<owl>')\n```\n\nSee [here](https://owls.example/two).",
            1700000003.0,
            status="partial",
            record=RECORD,
            thinking="One.\n</details>\n```\nTwo.",
        ),
    ),
    tags=("birds",),
)


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markdown_reads_well() -> None:
    text = written([TREE], "md")
    assert text.startswith(
        "# Owls & \\<others\\>\n\n*2023-11-14 22:13 UTC · tiny-4bpw · 3 messages and 1 on other branches"
    )
    for part in (
        "## System\n\nBe brief.\n",
        "## You\n\nHow many *owls* at <https://owls.example>?\nTell.\n",
        "## Assistant (tiny-4bpw)\n\n*Alternative 2 of 2*\n\n<details>\n<summary>Thinking</summary>\n",
        "\n*(cut short)*\n",
    ):
        assert part in text
    assert "Three." not in text
    assert "Gone." not in text


def test_nothing_in_thinking_ends_the_fold_or_runs_on() -> None:
    rendered = MarkdownIt("commonmark").render(written([TREE], "md"))
    assert rendered.count("<details>") == rendered.count("</details>") == 1
    assert rendered.index("</details>") > rendered.index("Two.")
    assert rendered.index("<p>Two:</p>") > rendered.index("</details>")


@pytest.mark.parametrize("opened", ["```python\nx", "~~~~\n```\nx\n~~~", "- a\n  ```\n", "    ```\nx", "```a`b\nx"])
def test_an_open_fence_does_not_swallow_what_follows(opened: str) -> None:
    messages = (Message("a", None, "user", opened, 1.0), Message("b", "a", "assistant", "B", 2.0))
    tree = ConversationTree("T", 1.0, 2.0, "b", messages)
    assert "<h2>Assistant</h2>" in MarkdownIt("commonmark").render(written([tree], "md"))


def test_openai_messages_come_back(tmp_path: Path) -> None:
    text = written([TREE], "openai")
    assert json.loads(text) == {
        "title": "Owls & <others>",
        "model": "tiny-4bpw",
        "messages": [{"role": role, "content": content} for role, content in said(TREE)],
    }
    again = imported(tmp_path, "a.json", text)
    assert (again.kind, said(again.trees[0])) == ("openai", said(TREE))
    several = imported(tmp_path, "a.json", written([TREE, TREE], "openai"))
    assert [tree.title for tree in several.trees] == ["Owls & <others>"] * 2


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = written([TREE], "html")
    page = Page(text)
    assert "<title>Owls &amp; &lt;others&gt;</title>" in text
    assert "prefers-color-scheme: dark" in text
    assert '<span class="nb">print</span>' in text
    assert "print('<owl>')" in page.text
    assert "https://owls.example/two)" in page.text
    assert "Alternative 2 of 2, cut short" in page.text
    assert "Three." not in page.text
    assert [tag for tag, _ in page.tags].count("details") == 1
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["https://owls.example", "https://owls.example/two"]
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|src=", text)


def test_several_conversations_have_a_list() -> None:
    page = Page(written([TREE, TREE], "html"))
    assert [a["href"] for tag, a in page.tags if tag == "a" and str(a["href"]).startswith("#")] == ["#c1", "#c2"]
    assert [a["id"] for tag, a in page.tags if tag == "article"] == ["c1", "c2"]


HARMLESS = {"html", "head", "meta", "title", "style", "body", "nav", "ol", "ul", "li", "article", "section", "details"}
HARMLESS |= {
    "summary",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "p",
    "span",
    "pre",
    "code",
    "a",
    "em",
    "strong",
    "s",
    "br",
    "hr",
}
HARMLESS |= {"blockquote", "table", "thead", "tbody", "tr", "th", "td"}
ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>)",
    "[x](vbscript:x)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example)",
    "![p](https://evil.example/pixel.png)",
    "![p](data:image/png;base64,AAAA)",
    '[x](https://a.example/"onmouseover="alert(1))',
    "<https://a.example/'onx='y>",
    '```"><script>\nx\n```',
    "```html\n</code></pre><script>x</script>\n```",
    "</style></section><iframe src=x>",
    "<!-- -->",
    "&lt;script&gt;",
    "javascript:alert(1)",
    "\x00\x1b]0;t\x07",
)


@given(st.lists(st.sampled_from(ATTACKS) | st.text(max_size=12), max_size=6).map("\n".join))
def test_no_text_becomes_anything_that_acts(text: str) -> None:
    foreign = {"name": text}
    messages = (Message("m", None, "assistant", text, 1.0, thinking=text, foreign=foreign),)
    content = written([ConversationTree(text, 1.0, 1.0, "m", messages, tags=(text,))], "html")
    page = Page(content)
    for tag, attributes in page.tags:
        assert tag in HARMLESS
        assert not {name for name in attributes if name.startswith("on")} | (
            {"src", "srcset", "style"} & attributes.keys()
        ) - ({"style"} if tag in {"td", "th"} else set())
        address = str(attributes.get("href", "#"))
        assert address.startswith(("#", "http://", "https://", "mailto:"))
    assert "\x00" not in content
    assert "\x1b" not in content


STEERING = [
    chr(code)
    for code in range(0x11_0000)
    if (unicodedata.category(chr(code)) == "Cc" and chr(code) not in "\t\n\r")
    or unicodedata.bidirectional(chr(code)) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
]


@pytest.mark.parametrize("written_as", ["{}", "a {} b", "`{}`", "```\n{}\n```", "[a{}](https://a.example/{})"])
def test_no_character_that_steers_or_hides_is_in_a_page(written_as: str) -> None:
    assert "\u202e" in STEERING
    assert "\x9b" in STEERING
    texts = [written_as.replace("{}", one) for one in STEERING]
    texts += [written_as.replace("{}", f"&#{ord(one)};") for one in STEERING]
    texts += [f"https://a.example/{quote(one)}" for one in STEERING]
    text = "\n\n".join(texts)
    message = Message("m", None, "assistant", text, 1.0, thinking=text, foreign={"name": text})
    content = written([ConversationTree(text, 1.0, 1.0, "m", (message,), tags=(text,))], "html")
    assert [hex(ord(one)) for one in STEERING if one in content] == []


@given(st.lists(trees(), min_size=1, max_size=2), st.sampled_from(["md", "html", "openai"]))
def test_any_tree_can_be_written(several: list[ConversationTree], form: Format) -> None:
    text = written(several, form)
    assert text.encode("utf-8")
    if form == "openai":
        whole = json.loads(text)
        whole = whole if len(several) > 1 else [whole]
        assert [len(one["messages"]) for one in whole] == [len(active_branch(tree)) for tree in several]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "> " * 3000 + "x",
        "*a " * 50_000,
        "\n".join("  " * n + "- x" for n in range(300)),
        "a" * 300_000,
        "`" * 9000,
    ],
)
def test_long_and_nested_texts_are_all_there_in_no_time(text: str) -> None:
    with within(1):
        page = Page(rendered(text))
    kept = re.sub(r"[^a-z]", "", text)
    assert re.sub(r"[^a-z]", "", page.text) == kept

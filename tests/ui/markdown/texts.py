"""Markdown texts for property tests: fragments that open, close and break constructs, in any order."""

from hypothesis import strategies as st

FRAGMENTS = [
    "\n", "\n", "\n", "\n\n", "\n\n", " ", " ", "  ", "    ", "\t", "\r\n", "\r",
    "word", "Wort", "palabra", "слово", "日本語", "ñ", "👩‍👧", "e\u0301", "a|b", "z",
    "- ", "- ", "* ", "+ ", "1. ", "2. ", "7) ", "> ", "> ", "# ", "### ", "- [ ] ", "- [x] ",
    "```", "```python\n", "````", "~~~", "def f(a):\n", '"""', "`", "``",
    "*", "**", "_", "~~", "\\", "\\(", "\\)", "\\[", "$$", "|", " | ", "|---|---|\n", "| a | b |\n", "-|-\n", ":-:",
    "---\n", "===\n", "***\n", "[", "]", "](http://host/p)", "](javascript:z)", '](u "title")', "!", "<", ">",
    "<think>", "</think>", "List<int>", "&amp;", "[ref]: http://host\n", "http://host/path", "www.host.org", ":", "#",
    "$", "\x1b[31m", "\x00", "\u202e", "\u200b", "\x9b", "\u2028",
]  # fmt: skip

TEX_FRAGMENTS = [
    "\n", "\n", "\n\n", " ", " ", "- ", "+ ", "> ", "1. ", "# ", "---\n", "| ", "|---|---|\n", "*", "_", "`", "```\n",
    "$", "$", "$", "$$", "$$", "$$\n", "\n$$\n", "\\(", "\\)", "\\[", "\\]", "\\[\n", "\n\\]\n", "\\$",
    "a", "b", "word", "5", "10", "=", "+", "-", "<", ",", "(", ")", "[", "]", "|", "'", "ñ", "日", "e\u0301", "&", "%",
    "^", "_", "{", "}", "^2", "_i", "^{n+1}", "_{old}", "\\", "\\\\", "\\alpha", "\\le ", "\\sum", "\\left(",
    "\\right)", "\\frac{a}{b}", "\\frac", "\\sqrt{", "\\sqrt[3]", "\\mathbb{R}", "\\mathbf{v}", "\\text{if }",
    "\\hat{y}", "\\unknown", "\\begin{cases}", "\\end{cases}", "\\quad", "\\,", "\\boxed{", "\x1b[31m", "\u202e",
    "\x00", "&#27;",
]  # fmt: skip

markdown_texts = st.lists(st.sampled_from(FRAGMENTS), min_size=4, max_size=60).map("".join)
tex_texts = st.lists(st.sampled_from(TEX_FRAGMENTS), min_size=4, max_size=40).map("".join)


@st.composite
def chunked_texts(draw: st.DrawFn) -> list[str]:
    """A text cut into pieces, as it would arrive from a model."""
    text = draw(markdown_texts | tex_texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

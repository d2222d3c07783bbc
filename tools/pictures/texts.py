"""What is said in the pictures and in the tour."""

from __future__ import annotations

SORTING = "How do I sort words by their length?"
SORTED = """### With a key

`sorted` takes a *function* that says what to sort by, see
[the manual](https://docs.python.org/3/howto/sorting.html):

```python
def by_length(words: list[str], most=12) -> list[str]:
    # words of one length stay in order
    return sorted(words, key=len)[:most] or ["none"]
```

| call | in place | gives |
|---|---|---|
| `sorted(words)` | no | a list |
| `words.sort()` | **yes** | `None` |

> It has been stable since Python 2.2.
"""
Talk = tuple[str, tuple[tuple[str, str], ...]]
"""A title; questions and answers."""
CONVERSATIONS: tuple[Talk, ...] = (
    (
        "Frost on the window",
        (
            (
                "Why does frost grow in ferns?",
                "Water vapour freezes where a crystal already stands out, because **a tip reaches more of the moist "
                "air** than a flat place. So tips grow fastest, and branch.\n\nScratches and dust on the pane are "
                "where the ferns begin.",
            ),
            (
                "And why only on old windows?",
                "A single pane is colder than the air's dew point on the inside. Double glazing keeps the inner pane "
                "warm, so the *frost* has nowhere to start.",
            ),
        ),
    ),
    (
        "A name for a boat",
        (
            (
                "A name for a small blue boat?",
                "- **Cornflower**, for the colour\n- **Half Past**, for the hour you get back\n- **Kingfisher**, "
                "small, blue, quick\n\nIn a frosty harbour: *Blue Hour*.",
            ),
        ),
    ),
    (
        "Bread without kneading",
        (
            (
                "Can bread do without kneading?",
                "Yes: time does it. Mix 400 g of flour, 300 g of water, 8 g of salt and a pinch of yeast; after "
                "**18 hours** the gluten has found itself.",
            ),
        ),
    ),
    ("Words by length", ((SORTING, SORTED),)),
)
FILES = {
    "words.py": '''"""Words by length."""

from pathlib import Path


def by_length(path: Path, most: int = 12) -> list[str]:
    """The shortest words of a file first."""
    words = set(path.read_text(encoding="utf-8").split())
    return sorted(words, key=len)[:most]
''',
    "words.txt": "tern gull heron kingfisher wren swift sandpiper\n" * 6,
    "notes/harbour.md": "# Harbour\n\nLow water at six, the boat is on the second mooring.\n",
    "notes/bread.md": "# Bread\n\n400 g flour, 300 g water, 8 g salt, a pinch of yeast, 18 hours.\n",
    "README.md": "# Words\n\nPrints the shortest words of a file.\n",
}

# The tour

ABOUT_THE_FILE = """It prints the **shortest words** of a file first:

1. `by_length` reads the file and takes each word once,
2. sorts them with `key=len`, so that short ones come first,
3. and keeps the first `most` of them, which is 12 unless you say otherwise.
"""
BY_LAST_LETTER = (
    """A key again, this time the last character:

```python
sorted(words, key=lambda word: word[-1])
```
""",
    """Turn each word round, so that the letter before the last counts as well:

```python
sorted(words, key=lambda word: word[::-1])
```
""",
    """`itemgetter` is the same without a `lambda`:

```python
from operator import itemgetter

sorted(words, key=itemgetter(-1))
```
""",
)
HARBOUR_NAMES = (
    "Brainstormer, what could a café on the old quay be called?",
    """*The Slack Tide*, *Bollard & Bean*, *Low Water*, *The Ferryman's Cup*.

*Low Water* is the best of them: short, of the place, and it is what the windows look out on.""",
    """“What the windows look out on” says it; “of the place” says it again, and weaker.

I would keep: **Low Water: short, and what you see from the window.**""",
)
COMPARED = (
    """Take `operator.itemgetter`:

    key = itemgetter(-1)
    sorted(words, key=key)

It is made once and called in C for
each word, so it is a little faster
than a lambda. An empty word has no
last letter and raises IndexError:
filter those out before.
""",
    """Both are fine. A lambda can also
say what an empty word counts as:

    sorted(
        words,
        key=lambda word: word[-1:],
    )

A slice of nothing is "", which comes
before all letters. So nothing has to
be filtered, and nothing is raised.
""",
)

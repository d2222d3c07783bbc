"""However a text arrives, it ends up looking the same, and what is finished is never touched again."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exlchat.ui.render.markdown.render import Renderer
from exlchat.ui.render.markdown.styles import TextStyles
from exlchat.ui.tui.widgets.transcript_items import Role
from exlchat.ui.tui.widgets.transcript_layout import MessageLayout
from tests.ui.markdown.texts import chunked_texts

ANSWER = """\
# How to sort

First **think** about it:

1. Take the list
2. Call `sorted`:
   ```python
   xs = sorted(xs)
   ```
3. Done

   - nested
   - points

| name | cost |
|------|-----:|
| quick | n log n |
| bubble | n² |

```python
def bubble(xs):
    '''A string
    over two lines.'''
    return xs

```
> quoted
> twice
and lazily

That is all.
"""


def layout_of(role: Role, width: int) -> MessageLayout:
    return MessageLayout(role, "", Renderer(TextStyles(), width))


def at_once(text: str, width: int, role: Role = "assistant") -> MessageLayout:
    layout = layout_of(role, width)
    layout.append(text)
    layout.close()
    layout.update()
    return layout


def segments(layout: MessageLayout) -> list[list[tuple[str, object]]]:
    return [[(segment.text, segment.style) for segment in line] for line in layout.lines]


def texts(layout: MessageLayout) -> list[str]:
    return [line.text for line in layout.lines]


@given(chunks=chunked_texts(), width=st.sampled_from([8, 20, 60, 1000]), role=st.sampled_from(["assistant", "user"]))
@example(chunks=["- a\n", "- b\n\n", "  c\n- d\n", "1. e\n1. f"], width=60, role="assistant")
@example(chunks=["```\nx\n``", "`\n", "\nnext"], width=60, role="assistant")
@example(chunks=["a\r", "\nb"], width=60, role="assistant")
@example(chunks=["- - c\n- -|-\n", "-|-\n"], width=60, role="assistant")
@example(chunks=["```|\n", "-|-\n", "a"], width=60, role="assistant")
@example(chunks=["~~~a\n", "b\nc~~~\n~~~\n", "~~~a\nd"], width=60, role="assistant")
@example(chunks=["text\na | b\n", "-|-\nc | d"], width=60, role="assistant")
def test_a_streamed_text_ends_as_the_whole_text(chunks: list[str], width: int, role: Role) -> None:
    layout = layout_of(role, width)
    for chunk in chunks:
        layout.append(chunk)
        layout.update()
    layout.close()
    layout.update()
    assert segments(layout) == segments(at_once("".join(chunks), width, role))


@given(chunks=chunked_texts(), width=st.sampled_from([20, 80]))
@example(chunks=["```", "py", "thon", "\n", "x", "`"], width=80)
@example(chunks=["```python\n'👩\u200d👧'"], width=80)
def test_at_every_moment_the_lines_read_as_those_of_the_text_so_far(chunks: list[str], width: int) -> None:
    layout = layout_of("assistant", width)
    so_far = ""
    for chunk in chunks:
        layout.append(chunk)
        layout.update()
        so_far += chunk
        if not so_far.endswith("\r"):  # may be half of a line end
            assert texts(layout) == texts(at_once(so_far, width))


@given(chunks=chunked_texts(), width=st.sampled_from([20, 80]))
def test_lines_before_the_first_changed_one_are_the_same_objects(chunks: list[str], width: int) -> None:
    layout = layout_of("assistant", width)
    for chunk in chunks:
        before = list(layout.lines)
        layout.append(chunk)
        unchanged = layout.update()
        assert all(old is new for old, new in zip(before[:unchanged], layout.lines, strict=False))
        assert len(layout.lines) >= unchanged


@pytest.mark.parametrize("seed", range(5))
def test_a_real_answer_streams_to_the_same_lines(seed: int) -> None:
    chance = random.Random(seed)
    layout = layout_of("assistant", 60)
    rest = ANSWER
    while rest:
        size = chance.randint(1, 9)
        layout.append(rest[:size])
        rest = rest[size:]
        layout.update()
    layout.close()
    layout.update()
    assert segments(layout) == segments(at_once(ANSWER, 60))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("- item {} with **bold** words\n", 2), ("Paragraph {}.\n\n", 3), ("{}. numbered\n", 2)],
    ids=["list", "paragraphs", "numbers"],
)
def test_only_the_open_end_is_laid_out_again(unit: str, expected: int) -> None:
    layout = layout_of("assistant", 60)
    for number in range(200):
        layout.append(unit.format(number))
        lines_before = len(layout.lines)
        first_changed = layout.update()
        assert lines_before - first_changed <= expected


def test_lines_of_an_open_fence_are_kept_while_it_grows() -> None:
    layout = layout_of("assistant", 60)
    layout.append("```python\n")
    layout.update()
    for number in range(100):
        layout.append(f"x{number} = {number}\n")
        before = list(layout.lines)
        layout.update()
        assert all(old is new for old, new in zip(before[:-1], layout.lines, strict=False))


def test_a_string_over_lines_is_highlighted_as_one_once_the_fence_is_closed() -> None:
    layout = layout_of("assistant", 60)
    layout.append('```python\nx = """\nfor\n"""\n')
    layout.update()
    growing = segments(layout)
    layout.append("```\n")
    layout.update()
    closed = segments(layout)
    keyword_line, string_line = growing[2], closed[2]
    assert keyword_line[0][0].startswith("for")
    assert keyword_line[0][1] != string_line[0][1]

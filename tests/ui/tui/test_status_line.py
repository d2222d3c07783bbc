"""What the status line shows, and what it leaves out first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from exlchat.app.panels.figures import StatusFacts
from exlchat.ui.tui.widgets.status_line import WhoSpeaks, status_segments

FULL = StatusFacts("guide", "", None, 1234, 8192, 38.25, 1100, 24, 0.123)


def line(facts: StatusFacts, width: int) -> str:
    return Content("   ").join(status_segments(facts, width)).plain


def test_all_figures_in_a_wide_terminal() -> None:
    assert line(FULL, 120) == (
        "guide   ━━━━━━━━━━ context 1,234 of 8,192   38.2 tokens/s   1,100 remembered + 24 read   began after 0.12 s"
    )


def test_the_meter_goes_before_any_figure() -> None:
    assert line(FULL, 100) == (
        "guide   context 1,234 of 8,192   38.2 tokens/s   1,100 remembered + 24 read   began after 0.12 s"
    )


def test_the_last_figures_go_first() -> None:
    assert line(FULL, 80) == "guide   context 1,234 of 8,192   38.2 tokens/s   1,100 remembered + 24 read"
    assert line(FULL, 60) == "guide   context 1,234 of 8,192   38.2 tokens/s"
    assert line(FULL, 18) == "guide"


def test_what_the_conversation_says_itself_goes_after_the_figures() -> None:
    who = WhoSpeaks("Narrator", ("temperature 0.3", "top_k 40", "seed 7"))

    def shown(width: int) -> str:
        return Content("   ").join(status_segments(FULL, width, who)).plain

    assert shown(90) == ("guide   Narrator   context 1,234 of 8,192   this conversation: temperature 0.3 and 2 more")
    assert "this conversation: temperature 0.3, top_k 40, seed 7   38.2 tokens/s" in shown(130)
    assert shown(70) == "guide   Narrator   context 1,234 of 8,192"


def test_a_context_whose_use_is_not_known_tells_its_size() -> None:
    assert line(StatusFacts("guide", context_max=8192), 80) == "guide   context of 8,192"


def test_progress_has_a_meter_and_a_percentage() -> None:
    assert line(StatusFacts("guide", "reading weights", 0.5), 80) == "guide   ━━━━━━━━━━ reading weights 50%"
    assert line(StatusFacts("guide", "starting"), 80) == "guide   starting"


def test_the_context_warns_when_it_fills() -> None:
    def color(used: int) -> str:
        context = status_segments(StatusFacts("m", context_used=used, context_max=100), 80)[1]
        return str(context.spans[0].style)

    assert [color(used) for used in (50, 79, 80, 94, 95, 100)] == [
        *("$secondary", "$secondary", "$warning", "$warning", "$error", "$error"),
    ]


@given(
    st.builds(
        StatusFacts,
        st.text(max_size=30),
        st.text(max_size=20),
        st.none() | st.floats(0, 1),
        st.none() | st.integers(0, 10**7),
        st.none() | st.integers(0, 10**7),
        st.none() | st.floats(0, 1e6),
        st.none() | st.integers(0, 10**7),
        st.none() | st.integers(0, 10**7),
        st.none() | st.floats(0, 1e5),
    ),
    st.integers(0, 200),
)
def test_never_wider_than_there_is_room_but_for_one_part(facts: StatusFacts, width: int) -> None:
    parts = status_segments(facts, width)
    assert len(parts) <= 1 or Content("   ").join(parts).cell_length <= width

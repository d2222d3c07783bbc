"""Under which heading a conversation stands in the sidebar."""

from __future__ import annotations

import datetime

from textual.app import App, ComposeResult

from exlchat.chat.model import ConversationSummary
from exlchat.ui.tui.widgets.sidebar import Sidebar

TODAY = datetime.date(2026, 3, 2)


class Alone(App[None]):
    def compose(self) -> ComposeResult:
        yield Sidebar()


async def test_conversations_stand_under_the_day_they_were_last_used() -> None:
    days_ago = (0, 0, 1, 2, 6, 7, 40)
    at = [datetime.datetime(2026, 3, 2, 12) - datetime.timedelta(days=days) for days in days_ago]
    summaries = [
        ConversationSummary(str(number), f"{days} days ago", one.timestamp(), one.timestamp(), 1)
        for number, (days, one) in enumerate(zip(days_ago, at, strict=True))
    ]
    app = Alone()
    async with app.run_test():
        sidebar = app.query_one(Sidebar)
        sidebar.show(summaries, None, (), TODAY)
        rows = [str(sidebar.get_option_at_index(row).prompt).strip() for row in range(sidebar.option_count)]
    expected = ["Today", "0 days ago", "0 days ago", "", "Yesterday", "1 days ago", ""]
    expected += ["This week", "2 days ago", "6 days ago", "", "February 2026", "7 days ago", "", "January 2026"]
    assert rows == [*expected, "40 days ago"]

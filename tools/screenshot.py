"""Take the pictures of the docs from the real app with the bundled guide: `python -m tools.screenshot`.

Two for the README, with answers of the guide, and one of each theme, with a written conversation.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.ui.options import AppOptions
from exlchat.ui.services import open_services
from exlchat.ui.tui.app import ChatApp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DOCS = Path(__file__).parents[1] / "docs"
SIZE = (120, 30)
EARLIER = ("Which keys do I need?", "What is the context meter?")
QUESTIONS = ("How do I load a model?", "What is EXL2?", "How do I stop an answer?")
FONTS = "DejaVu Sans Mono, Menlo, Consolas, monospace"
PATIENCE_SECONDS = 60.0
THEME_SIZE = (88, 28)
ASKED = "How do I sort words by their length?"
ANSWER = """### With a key

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


async def take(theme: str) -> None:
    """Ask the questions and write `docs/screenshot-<theme>.svg`."""
    with tempfile.TemporaryDirectory() as home:
        os.environ[paths.HOME_VARIABLE] = home
        chat = ChatApp(open_services(AppOptions(paths.bundled_model(), theme=theme)))
        async with chat.run_test(size=SIZE) as pilot:
            chat.chat_screen.composer.cursor_blink = False
            for earlier in EARLIER:
                chat.chat_screen.send(earlier)
                await answered(chat, pilot.pause)
                chat.chat_screen.new_conversation()
            for question in QUESTIONS:
                chat.chat_screen.send(question)
                await answered(chat, pilot.pause)
            await pilot.pause(0.2)
            picture = self_contained(chat.export_screenshot(title="exlchat"))
        chat.services.store.close()
    (DOCS / f"screenshot-{theme.removeprefix('exlchat-')}.svg").write_text(picture, encoding="utf-8")


async def take_themes() -> None:
    """Write `docs/theme-<name>.svg` of every theme that comes along."""
    with tempfile.TemporaryDirectory() as home:
        os.environ[paths.HOME_VARIABLE] = home
        services = open_services(AppOptions(paths.bundled_model()))
        conversation = services.store.create_conversation()
        services.store.add_message(conversation.id, "user", ASKED)
        services.store.add_message(conversation.id, "assistant", ANSWER)
        chat = ChatApp(services)
        async with chat.run_test(size=THEME_SIZE) as pilot:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not chat.engine_thread.loaded:
                    await pilot.pause(0.05)
            chat.chat_screen.composer.cursor_blink = False
            chat.chat_screen.show_sidebar(False)
            chat.chat_screen.open_conversation(conversation.id)
            for name in services.themes:
                chat.theme = name
                await pilot.pause(0.3)
                picture = self_contained(chat.export_screenshot(title=f"/theme {name}"))
                (DOCS / f"theme-{name}.svg").write_text(picture, encoding="utf-8")
        services.store.close()


def self_contained(picture: str) -> str:
    """The picture without the web font that Rich links to: a README shows it as it is, and fetches nothing."""
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace("Fira Code", FONTS)


async def answered(chat: ChatApp, pause: Callable[[float], Awaitable[None]]) -> None:
    """Wait for the answer that is on its way.

    Raises:
        TimeoutError: none came.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while chat.session.answering is not None:
            await pause(0.05)


def main() -> int:
    """All of them."""
    asyncio.run(take_themes())
    for theme in ("exlchat-dark", "exlchat-light"):
        asyncio.run(take(theme))
    return 0


if __name__ == "__main__":
    sys.exit(main())

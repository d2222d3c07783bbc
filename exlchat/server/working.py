"""A request that no engine has to answer, though it may take a while: texts into ids, messages into prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from exlchat.api.asked import FindSpeaker
from exlchat.api.fields import Fields, read_body
from exlchat.server.answering import told_ignored, whole_body
from exlchat.server.desk import Desk
from exlchat.server.sending import send_json

Work = Callable[[Fields, FindSpeaker], dict[str, Any]]


class Working:
    """An endpoint; `work` makes the reply of a body, in a thread."""

    def __init__(self, desk: Desk, work: Work) -> None:
        self._desk, self._work = desk, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        data = await whole_body(receive)
        desk = self._desk
        fields = await desk.in_thread(lambda: read_body(data))
        async with desk.speaker(fields.text("model")) as speaker:
            found = await desk.in_thread(lambda: self._work(fields, lambda _: speaker))
        scope["record"].ignored = fields.ignored
        desk.allow(fields.ignored)
        await send_json(send, 200, found, told_ignored(fields.ignored))

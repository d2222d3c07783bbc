"""/serve: other programs ask the model of the open chat. A real engine, a real client and real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from textual.pilot import Pilot

from exlchat import paths
from exlchat.engine import load
from exlchat.llm.info import LoadProgress
from exlchat.llm.port import Engine
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until

LONG: dict[str, Any] = {
    "model": "guide",
    "messages": [{"role": "user", "content": "What is EXL2?"}],
    "max_tokens": 600,
    "temperature": 2.0,
    "extra_body": {"min_tokens": 600},
}
"""Drawn so wildly that it never says the same over and over, which would end it."""


def guide(_: object = None) -> Engine:
    return load(paths.bundled_model(), device="cpu", bundled=True)


def chat_of(folder: Path) -> ChatApp:
    return app(folder, load=guide, loader=lambda _: guide)


def client(chat: ChatApp) -> openai.OpenAI:
    return openai.OpenAI(base_url=chat.chat_screen.serving.place, api_key="any", max_retries=0)


async def serve(pilot: Pilot[int], chat: ChatApp, argument: str = "0") -> None:
    await say(pilot, f"/serve {argument}")
    await until(pilot, lambda: chat.chat_screen.serving.place != "")


async def asked_for_long(pilot: Pilot[int], chat: ChatApp) -> asyncio.Task[Any]:
    """An answer that is being written for another program."""
    await until(pilot, lambda: chat.chat_screen.model.info is not None)
    await serve(pilot, chat)
    asked = asyncio.create_task(asyncio.to_thread(client(chat).chat.completions.create, **LONG))
    await until(pilot, lambda: "tokens in" in shown(chat))
    return asked


async def test_a_program_and_the_person_in_front_are_answered_side_by_side(tmp_path: Path) -> None:
    chat = chat_of(tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await serve(pilot, chat)
        await until(pilot, lambda: "Nothing is asked now" in shown(chat))
        asked = asyncio.create_task(asyncio.to_thread(client(chat).chat.completions.create, **LONG))
        await until(pilot, lambda: "tokens in" in shown(chat))
        await pilot.press("escape")
        await until(pilot, lambda: "serving 1 request" in shown(chat))
        await say(pilot, "What is a page?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await idle(pilot)
        # Whoever is in front went first: the other answer is longer and still runs.
        assert not asked.done()
        reply = await asked
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 600
        await say(pilot, "/serve")
        await until(pilot, lambda: "600 tokens in" in shown(chat))
        await pilot.press("escape")
        place = chat.chat_screen.serving.place
        await say(pilot, "/serve off")
        assert chat.chat_screen.serving.place == ""
        await asyncio.to_thread(chat.chat_screen.serving.wait_for_end)
        with pytest.raises(httpx.ConnectError):
            await asyncio.to_thread(httpx.get, f"{place}/models")
        # And it can be served again.
        await serve(pilot, chat)
        models = await asyncio.to_thread(client(chat).models.list)
        assert models.data[0].id == "guide"


async def test_a_request_is_ended_from_the_panel_and_its_client_is_told(tmp_path: Path) -> None:
    chat = chat_of(tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        asked = await asked_for_long(pilot, chat)
        await pilot.press("delete")
        with pytest.raises(openai.APIStatusError, match="has ended this request"):
            await asked
        await until(pilot, lambda: "status 503" in shown(chat))


async def test_another_model_waits_for_requests_and_answers_those_that_come_after_it(tmp_path: Path) -> None:
    chat = chat_of(tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        asked = await asked_for_long(pilot, chat)
        await pilot.press("escape")
        before = chat.engine_jobs.engine
        chat.chat_screen.models.change_to(paths.bundled_model())
        await until(pilot, lambda: "is loaded when what runs has ended" in told(chat))
        reply = await asked
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 600
        await until(pilot, lambda: chat.engine_jobs.engine not in (before, None))
        later = await asyncio.to_thread(client(chat).chat.completions.create, **{**LONG, "extra_body": {}})
        assert later.choices[0].message.content


async def test_quitting_ends_what_programs_ask_and_leaves_no_port_behind(tmp_path: Path) -> None:
    chat = chat_of(tmp_path)
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await serve(pilot, chat)
        place = chat.chat_screen.serving.place
        asked = asyncio.create_task(asyncio.to_thread(client(chat).chat.completions.create, **LONG))
        await until(pilot, lambda: "tokens in" in shown(chat))
        began = time.monotonic()
    with pytest.raises(openai.APIError):
        await asked
    assert time.monotonic() - began < 10
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{place}/models")


async def test_what_cannot_be_served_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    chat = chat_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = {
            "nonsense": "/serve takes a PORT such as 8765, HOST:PORT, or off",
            "70000": "/serve takes a PORT such as 8765, HOST:PORT, or off",
            f"{port}": f"127.0.0.1:{port} cannot be listened on (address already in use); give another PORT",
            "0.0.0.0:0": "others reach 0.0.0.0, so clients need a key, and there is none",
            "off": "no other program can ask this model; /serve lets them",
        }
        async with chat.run_test(size=(160, 40)) as pilot:
            for argument, line in refused.items():
                await say(pilot, f"/serve {argument}")
                await until(pilot, lambda line=line: line in told(chat))  # type: ignore[misc]
                assert chat.chat_screen.serving.place == ""
                chat.chat_screen.composer.set_text("")
                chat.clear_notifications()


async def test_while_no_model_is_loaded_programs_are_told_to_come_again(tmp_path: Path) -> None:
    def fail(_: LoadProgress) -> Engine:
        raise RuntimeError("no such model")

    chat = app(tmp_path, load=fail)  # type: ignore[arg-type]
    async with chat.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.failure is not None)
        await serve(pilot, chat)
        reply = await asyncio.to_thread(
            httpx.post, f"{chat.chat_screen.serving.place}/chat/completions", json={"messages": LONG["messages"]}
        )
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        assert "no model is loaded here" in reply.json()["error"]["message"]

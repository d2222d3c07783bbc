"""Servers that fail, lie or stall: one line that names them, and what has come is kept."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import SamplingSettings
from exlchat.remote import http
from exlchat.remote.address import Address, Remote, RemoteError
from exlchat.remote.engine import RemoteEngine, connect
from exlchat.remote.http import Http
from tests.patience import PATIENCE
from tests.remote.stub import DONE, Body, Route, Stub, delta, listed, serving, streamed, told, usage
from tests.remote.test_kinds import TEXT, VLLM

MODELS = {"GET /v1/models": listed("m")}
CHAT = "POST /v1/chat/completions"


def engine(stub: Stub, key: str = "") -> RemoteEngine:
    return connect(Remote("stub", Address.parse(stub.url), key=key))


def gone_wrong(route: Route) -> tuple[str, str]:
    """What is told of an answer, and its text until then."""
    with serving({**MODELS, CHAT: route}) as stub:
        there, text = engine(stub), ""
        ids = there.encode('{"role": "user", "content": "Hi"}\n')
        line = ""
        try:
            for event in there.generate(GenerationRequest(ids)):
                assert not isinstance(event, Finished)
                text += event.text if isinstance(event, TextDelta) else ""
        except RemoteError as error:
            line = str(error)
        assert stub.url in line
        assert "\n" not in line
        assert "\x1b" not in line
        return line.replace(stub.url, "URL"), text


def no_stream(data: bytes, kind: str = "text/event-stream") -> Route:
    return lambda _: (200, {"Content-Type": kind}, iter([data]))


def chunks(data: bytes) -> Route:
    """A stream of events in the pieces of HTTP, as they are."""
    headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    return lambda _: (200, headers, iter([data]))


@pytest.mark.parametrize(
    ("route", "says", "kept"),
    [
        (streamed(delta("Hel"), b"data: {nonsense\n\n"), "no JSON", "Hel"),
        (streamed(delta("Hel"), b"<html>busy</html>\n"), "no stream of events", "Hel"),
        (streamed(delta("Hel"), {"error": {"message": "out of\nmemory \x1b[2J"}}), "out of memory", "Hel"),
        (streamed(delta("Hel"), [1, 2]), "no object", "Hel"),
        (streamed(delta("Hel"), {"choices": [{"delta": {"content": 5}}]}), "text that is none", "Hel"),
        (streamed(delta("Hel"), {"choices": {"0": 1}}), "no list", "Hel"),
        (streamed(delta("Hel"), {"error": {"message": "lost the card"}, "choices": []}), "lost the card", "Hel"),
        (
            streamed(delta("Hel"), {"choices": [{"delta": {}, "finish_reason": "abort"}]}),
            "before its end (abort)",
            "Hel",
        ),
        (streamed(delta("Hel"), *[{"choices": [{"delta": {}}]}] * 10_001), "events that say nothing", "Hel"),
        (streamed(delta("Hel")), "breaks off before the answer has ended", "Hel"),
        (streamed(delta("Hel"), *[usage(3, 1)] * 10_001), "events that say nothing", "Hel"),
        (streamed(delta("Hel"), {"object": "error", "message": "CUDA is gone", "code": 50}), "CUDA is gone", "Hel"),
        (streamed(delta("Hel"), {"error": "gone"}), "gone", "Hel"),
        (streamed(delta("Hel"), b'error: {"code": 500, "message": "slot lost"}\n\n'), "slot lost", "Hel"),
        (streamed(delta("Hel"), {"choices": ["x"]}), "no object", "Hel"),
        (streamed(delta("Hel"), {"choices": [{"delta": [1]}]}), "no object", "Hel"),
        (streamed(delta("Hel"), b"data: \xff\xfe\n\n"), "no JSON", "Hel"),
        (streamed(delta("Hel"), b"data: " + b"[" * 100_000 + b"\n\n"), "no JSON", "Hel"),
        (streamed(delta("Hel"), *[b": still here\n\n" * 50_000] * 6), "without an event that ends", "Hel"),
        (streamed(delta("Hel"), *[b"event: x\nid: 1\n" * 50_000] * 6), "without an event that ends", "Hel"),
        (streamed(delta("Hel"), b'data: {"choices": [{"del'), "breaks off before the answer has ended", "Hel"),
        (chunks(b"5\r\n: hi\n\r\n-5\r\nabc"), "breaks off (read length", ""),
        (chunks(b"zz\r\nabc"), "breaks off before the answer has ended", ""),
        (no_stream(gzip.compress(b"data: {}\n\n")), "no stream of events", ""),
        (streamed(DONE), "breaks off before the answer has ended", ""),
        (streamed(delta("Hel"), b"data: " + b"x" * (http.LONGEST_LINE + 10)), "more than", "Hel"),
        (told({"error": {"message": "no such template"}}), "no such template", ""),
        (told({"detail": [{"msg": "bad"}]}, status=422), "bad", ""),
        (no_stream(b"[" * 100_000, "application/json"), "no JSON", ""),
        (told({}, status=302, Location="http://evil.example/v1"), "sends us elsewhere", ""),
        (told({"error": "key?"}, status=401), "right key", ""),
        (told({"error": {"message": "too long", "code": "context_length_exceeded"}}, status=400), "too long", ""),
    ],
)
def test_a_lie_is_told_in_one_line_and_the_text_before_it_is_kept(route: Route, says: str, kept: str) -> None:
    line, text = gone_wrong(route)
    assert says in line
    assert text == kept


def end_for_ever(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
    event = f"data: {json.dumps(delta('Hello', 'stop'))}\n\n".encode()
    return 200, {"Content-Type": "text/event-stream"}, itertools.repeat(event)


def other(index: int, text: str) -> Body:
    return {"index": index, "delta": {"content": text}}


@pytest.mark.parametrize(
    "route",
    [
        streamed(delta("Hello"), delta(reason="stop"), delta(" there"), DONE),
        end_for_ever,
        streamed({"choices": [other(1, "Bye"), other(0, "Hello")]}, delta(reason="stop"), DONE),
        streamed({"choices": [other(1, "Bye")]}, delta("Hello"), delta(reason="stop"), usage(5, 1, 10**9), DONE),
    ],
    ids=["behind", "repeated", "beside", "before"],
)
def test_what_stands_behind_the_end_or_beside_the_answer_is_none_of_it(route: Route) -> None:
    with serving({**MODELS, CHAT: route}) as stub:
        there = engine(stub)
        events = list(there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n'))))
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.text, last.reason) == ("Hello", "stop_token")
        assert "".join(one.text for one in events if isinstance(one, TextDelta)) == "Hello"
        assert last.stats.cached_tokens <= last.stats.prompt_tokens


def test_a_length_that_is_none_is_told_when_it_is_looked_at() -> None:
    with serving({"GET /v1/models": chunks(b"-5\r\nabc")}) as stub, pytest.raises(RemoteError, match="breaks off"):
        engine(stub)


def test_ids_that_do_not_spell_the_text_are_not_told_to_the_model() -> None:
    lie = streamed(chunk("Hello", [88, 89]), chunk("", [], "stop"), DONE)
    with serving({**VLLM, TEXT: lie}) as stub:
        there, store = connect(Remote("stub", Address.parse(stub.url), template=True)), ConversationStore(None)
        ident = store.create_conversation().id
        for text in ("Hi", "More"):
            store.add_message(ident, "user", text)
            list(answer(store, there, ident, TurnOptions(SamplingSettings(), template="chatml")))
        _, body = stub.bodies("/v1/completions")
        # The stub's ids are code points.
        read = "".join(chr(one) for one in body["prompt"] if one < 256)
        assert "Hello" in read
        assert "XY" not in read


def test_the_text_of_an_answer_that_broke_off_is_in_the_conversation_and_goes_on() -> None:
    with serving({**MODELS, CHAT: streamed(delta("Once upon"))}) as stub:
        there, store = engine(stub), ConversationStore(None)
        ident = store.create_conversation().id
        store.add_message(ident, "user", "A story")
        events = []
        with pytest.raises(RemoteError):
            events.extend(answer(store, there, ident, TurnOptions(SamplingSettings())))
        message = store.load(ident).branch[-1]
        assert (message.text, message.status) == ("Once upon", "partial")


def test_one_that_answers_byte_by_byte_is_given_up() -> None:
    def drops(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            while not stub.gone.wait(0.05):
                yield b" "

        return 200, {"Content-Type": "application/json"}, pieces()

    with serving({"GET /v1/models": drops}) as stub:
        there = Http(Address.parse(stub.url))
        with pytest.raises(RemoteError, match="it took too long"):
            there.get("/v1/models", seconds=0.2)


def test_an_endless_answer_ends_at_its_bound() -> None:
    def endless(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            while True:
                yield f"data: {json.dumps(delta('x' * 500))}\n\n".encode()

        return 200, {"Content-Type": "text/event-stream"}, pieces()

    with serving({**MODELS, CHAT: endless}) as stub:
        there = engine(stub)
        ids = there.encode('{"role": "user", "content": "Hi"}\n')
        *_, last = there.generate(GenerationRequest(ids, max_new_tokens=10))
        assert isinstance(last, Finished)
        assert last.reason == "max_new_tokens"
        assert stub.gone.wait(PATIENCE)


def test_a_cancel_wakes_what_waits_and_closes_the_connection() -> None:
    waiting = threading.Event()

    def silent(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            yield f"data: {json.dumps(delta('Hel'))}\n\n".encode()
            waiting.set()
            for _ in range(int(PATIENCE * 20)):
                threading.Event().wait(0.05)
                yield b": still here\n\n"

        return 200, {"Content-Type": "text/event-stream"}, pieces()

    with serving({**MODELS, CHAT: silent}) as stub:
        there = engine(stub)
        running = there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n')))
        threading.Thread(target=lambda: (waiting.wait(PATIENCE), running.cancel()), daemon=True).start()
        *_, last = running
        assert isinstance(last, Finished)
        assert (last.reason, last.text) == ("cancelled", "Hel")
        assert stub.gone.wait(PATIENCE)


def test_a_cancel_in_the_middle_of_an_event_is_no_lie_of_the_server() -> None:
    waiting = threading.Event()

    def halves(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            yield f'data: {json.dumps(delta("Hel"))}\n\ndata: {{"choices": [\n'.encode()
            waiting.set()
            while not stub.gone.wait(0.05):
                yield b"data: \n"

        return 200, {"Content-Type": "text/event-stream"}, pieces()

    with serving({**MODELS, CHAT: halves}) as stub:
        there = engine(stub)
        running = there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n')))
        threading.Thread(target=lambda: (waiting.wait(PATIENCE), running.cancel()), daemon=True).start()
        *_, last = running
        assert isinstance(last, Finished)
        assert (last.reason, last.text) == ("cancelled", "Hel")


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter([told({"error": "busy"}, status=503, **{"Retry-After": "0"})] * 2)

    def busy_first(body: Body) -> tuple[int, object, Iterator[bytes]]:
        return next(replies, streamed(delta("ok"), delta(reason="stop"), DONE))(body)

    with serving({**MODELS, CHAT: busy_first}) as stub:  # type: ignore[dict-item]
        there = engine(stub)
        *_, last = there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n')))
        assert isinstance(last, Finished)
        assert last.text == "ok"
        assert len(stub.bodies("/v1/chat/completions")) == 3


def test_one_that_stays_busy_or_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line, _ = gone_wrong(told({"error": "busy"}, status=429, **{"Retry-After": "3600"}))
    assert "busy (429)" in line
    monkeypatch.setattr(http, "SILENT_SECONDS", 0.2)

    def mute(_: Body) -> tuple[int, dict[str, str], Iterator[bytes]]:
        return 200, {"Content-Type": "text/event-stream"}, iter(lambda: threading.Event().wait(0.5) or b"", None)

    line, _ = gone_wrong(mute)
    assert "has said nothing for" in line


def test_nobody_there_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RemoteError, match="nobody answers there"):
        connect(Remote("x", Address.parse(f"127.0.0.1:{port}")))
    with serving({}) as stub, pytest.raises(RemoteError, match="has no /v1/models"):
        engine(stub)


def test_a_key_goes_with_every_request_and_into_no_message() -> None:
    with serving({**MODELS, CHAT: told({"error": "no"}, status=500)}) as stub:
        there = engine(stub, key="sekrit-1")
        with pytest.raises(RemoteError) as failed:
            list(there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n'))))
        assert all(one.get("Authorization") == "Bearer sekrit-1" for one in stub.headers)
        assert "sekrit" not in f"{failed.value}{there.info}{Remote('x', Address.parse('x'), key='sekrit-1')}"


def test_a_key_is_not_sent_where_others_can_read_it() -> None:
    with pytest.raises(RemoteError, match="unencrypted"):
        connect(Remote("x", Address.parse("http://192.0.2.1:80"), key="k"))


def by_ids(*events: object, **routes: Route) -> tuple[str, Finished | None]:
    """What is told of an answer by ids, and its end if it has one."""
    with serving({**VLLM, TEXT: streamed(*events)}) as stub:
        there = connect(Remote("stub", Address.parse(stub.url), template=True))
        last = None
        try:
            for event in there.generate(GenerationRequest(there.encode("Hi"), max_new_tokens=20)):
                last = event if isinstance(event, Finished) else None
        except RemoteError as error:
            return str(error).replace(stub.url, "URL"), None
        return "", last


def chunk(text: str, ids: object, reason: str | None = None) -> Body:
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": reason}]}


@pytest.mark.parametrize("ids", [[-1], [2**31], [1.0], [True], ["72"], {"0": 72}, "72", 72, [None], [[72]]])
def test_ids_that_are_none_are_not_taken(ids: object) -> None:
    line, last = by_ids(chunk("H", ids), chunk("", [], "stop"), DONE)
    assert line.startswith("URL: sends ids that the model does not have")
    assert last is None


def test_ids_without_end_end_at_the_bound() -> None:
    line, last = by_ids(*[chunk("", [72])] * 1000)
    assert line == ""
    assert last is not None
    assert (last.reason, len(last.token_ids)) == ("max_new_tokens", 21)


@pytest.mark.parametrize("reply", [{"tokens": [-1]}, {"tokens": "no"}, {"tokens": [2**40]}, {"tokens": [1.5]}, {}])
def test_a_tokenizer_that_gives_no_ids_is_no_server_by_ids(reply: Body) -> None:
    with serving({**VLLM, "POST /tokenize": told(reply)}) as stub, pytest.raises(RemoteError, match="gives no ids"):
        connect(Remote("stub", Address.parse(stub.url), template=True))


@pytest.mark.parametrize("context", [-1, 0, "much", 1e30, True, None, [4096], 10**30])
def test_a_context_that_is_none_is_not_believed(context: object) -> None:
    with serving({"GET /v1/models": listed("m", owner="vllm", max_model_len=context)}) as stub:
        there = engine(stub)
        assert there.info.max_seq_len == 8192
        assert "does not say how much it reads" in there.info.notices[0]


def test_half_a_character_can_be_written_down() -> None:
    lie = streamed(delta("a\ud83d"), delta("b\udc00c"), delta("\ud83d\ude42", "stop"), DONE)
    with serving({**MODELS, CHAT: lie}) as stub:
        there, store = engine(stub), ConversationStore(None)
        ident = store.create_conversation().id
        store.add_message(ident, "user", "A story")
        list(answer(store, there, ident, TurnOptions(SamplingSettings())))
        assert store.load(ident).branch[-1].text == "a\ufffdb\ufffdc\U0001f642"


def test_probabilities_that_are_none_are_left_out() -> None:
    props = {"default_generation_settings": {"n_ctx": 512}, "chat_template": "{{ messages[0].content }}"}
    wrong = [(-1, -1.0), (2**40, -1.0), (72, 5.0), (72, 1e400), (72, -(10**400)), (72, "x"), ("72", -1.0), (72, True)]
    places = [{"id": 72, "logprob": -0.5, "top_logprobs": [{"id": one, "logprob": value} for one, value in wrong]}]
    routes = {
        "GET /v1/models": listed("m", meta={"n_vocab": 300}),
        "GET /props": told(props),
        "POST /tokenize": told({"tokens": [72]}),
        "POST /detokenize": told({"content": "H"}),
        "POST /completion": streamed(
            {"content": "H", "tokens": [72], "completion_probabilities": places},
            {"content": "", "tokens": [], "stop": True, "stop_type": "limit"},
        ),
    }
    with serving(routes) as stub:
        there = engine(stub)
        assert there.server.level == "ids"
        *_, last = there.generate(GenerationRequest((72,), max_new_tokens=1, alternatives=3))
        assert isinstance(last, Finished)
        (place,) = last.chances
        assert place.taken is not None
        assert (place.taken.token_id, place.taken.log_probability, place.top) == (72, -0.5, ())


def ask(stub: Stub, key: str) -> None:
    there = engine(stub, key=key)
    list(there.generate(GenerationRequest(there.encode('{"role": "user", "content": "Hi"}\n'))))


@pytest.mark.parametrize("at", ["GET /v1/models", CHAT])
def test_neither_prompt_nor_key_follow_a_server_that_sends_elsewhere(at: str) -> None:
    with serving({**MODELS, CHAT: streamed(delta("caught", "stop"), DONE)}) as other:
        there = told({}, status=307, Location=f"{other.url}/v1/chat/completions")
        with serving({**MODELS, at: there}) as stub:
            with pytest.raises(RemoteError, match="is not followed; give that address"):
                ask(stub, key="sekrit-4")
            assert other.asked == []

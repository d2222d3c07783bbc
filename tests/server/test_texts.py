"""Ids, prompts and models in the bodies of other servers, and what is told to whoever watches over this one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from exlchat.chat.prompt_format import choose_format
from exlchat.llm.port import Engine
from tests.server.served import CHAT, Served

TEXT = "Keys and values, 漢字"
MESSAGES = [{"role": "user", "content": "What is EXL2?"}]


def prompt(engine: Engine) -> str:
    info = engine.info
    return choose_format(info, None)[0].render(MESSAGES, bos_token=info.bos_token, eos_token=info.eos_token)


def bos(engine: Engine) -> list[int]:
    return engine.encode(engine.info.bos_token)


def test_tokenize_as_vllm_asks(guide: Served, guide_engine: Engine) -> None:
    plain = guide_engine.encode(TEXT)
    told = guide.ask("/tokenize", {"model": "guide", "prompt": TEXT}).json
    assert told == {"count": len(plain) + 1, "max_model_len": 2048, "tokens": bos(guide_engine) + plain}
    bare = guide.ask("/tokenize", {"prompt": TEXT, "add_special_tokens": False, "return_token_strs": True}).json
    assert bare["tokens"] == plain
    assert len(bare["token_strs"]) == len(plain)
    assert guide.ask("/tokenize", {"messages": MESSAGES}).json["tokens"] == guide_engine.encode(prompt(guide_engine))
    back = guide.ask("/detokenize", {"model": "guide", "tokens": plain}).json
    assert back["prompt"] == TEXT


def test_tokenize_as_llama_cpp_asks(guide: Served, guide_engine: Engine) -> None:
    plain = guide_engine.encode(TEXT)
    assert guide.ask("/tokenize", {"content": TEXT}).json == {"tokens": plain}
    pieces = guide.ask("/tokenize", {"content": "Keys and", "with_pieces": True, "add_special": True}).json["tokens"]
    assert "".join(one["piece"] for one in pieces) == guide_engine.info.bos_token + "Keys and"
    assert guide.ask("/detokenize", {"tokens": plain}).json["content"] == TEXT


def test_token_encode_as_tabbyapi_has_it(guide: Served, guide_engine: Engine) -> None:
    ids = bos(guide_engine) + guide_engine.encode(TEXT)
    assert guide.ask("/v1/token/encode", {"text": TEXT}).json == {"tokens": ids, "length": len(ids)}
    chat = guide.ask("/v1/token/encode", {"text": MESSAGES}).json
    assert chat["tokens"] == guide_engine.encode(prompt(guide_engine))
    assert guide.ask("/v1/token/decode", {"tokens": ids}).json["text"] == guide_engine.info.bos_token + TEXT
    bare = guide.ask("/v1/token/decode", {"tokens": ids, "decode_special_tokens": False}).json
    assert bare["text"] == TEXT


def test_special_tokens_may_be_plain_text(guide: Served, guide_engine: Engine) -> None:
    mark = guide_engine.info.eos_token
    one = guide.ask("/tokenize", {"content": mark}).json["tokens"]
    many = guide.ask("/tokenize", {"content": mark, "parse_special": False}).json["tokens"]
    assert (len(one), len(many) > 1) == (1, True)


def test_models_as_tabbyapi_has_them(guide: Served) -> None:
    loaded = guide.ask("/v1/model").json
    assert loaded["id"] == "guide"
    assert loaded["parameters"]["max_seq_len"] == 2048
    assert guide.ask("/v1/model/list").json == guide.ask("/v1/models").json


def test_a_template_is_applied_and_nothing_answers(guide: Served, guide_engine: Engine) -> None:
    assert guide.ask("/apply-template", {"messages": MESSAGES}).json == {"prompt": prompt(guide_engine)}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": 7}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {}),
        ("/v1/token/decode", {"tokens": [True]}),
        ("/apply-template", {"messages": [{"role": "x"}]}),
        ("/tokenize", {"content": "x", "model": "other"}),
    ],
)
def test_what_cannot_be_is_refused(guide: Served, path: str, body: dict[str, Any]) -> None:
    reply = guide.ask(path, body)
    assert 400 <= reply.status < 500
    assert reply.json["error"]["message"]


def test_counts_are_told(guide: Served) -> None:
    def counted() -> dict[str, float]:
        text = guide.ask("/metrics").body.decode()
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{[^}]*\})? -?[\d.e+-]+", line), line
        told = [line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#"]
        return {name: float(value) for name, value in told}

    before = counted()
    told = guide.ask(CHAT, {"messages": MESSAGES, "max_tokens": 7}).json
    usage = told["usage"]
    assert {"rows": 1, "exact": True}.items() <= told["exlchat"].items()
    assert guide.ask("/nothing/at/all").status == 404
    after = counted()

    def more(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert more("exlchat_generated_tokens_total") == 7
    sources = [more(f'exlchat_prompt_tokens_total{{source="{one}"}}') for one in ("computed", "memory")]
    assert sum(sources) == usage["prompt_tokens"]
    assert sources[1] == usage["prompt_tokens_details"]["cached_tokens"]
    assert more(f'exlchat_requests_total{{path="{CHAT}",code="200"}}') == 1
    assert more('exlchat_requests_total{path="other",code="404"}') == 1
    assert more("exlchat_ttft_seconds_count") == 1
    waiting = [value for name, value in after.items() if name.startswith("exlchat_requests_waiting")]
    assert [after["exlchat_requests_running"], *waiting] == [0, 0, 0, 0]
    # Between seven tokens, of which some may come in one piece.
    assert 1 <= more("exlchat_gap_seconds_count") <= 6
    assert after["exlchat_pauses_total"] == 0
    pages = [value for name, value in after.items() if name.startswith("exlchat_pages")]
    assert len(pages) == 3
    assert min(pages) >= 0

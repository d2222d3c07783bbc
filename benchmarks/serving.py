"""What `exlchat serve` adds to the engine: one client, the same prompts asked of the engine and of the server in turn.

    python -m benchmarks.serving [MODEL] [--device cpu] [--rounds 20] [--tokens 128] [--clients 64]

The server runs in a process of its own, the engine in this one; while one works, the other waits. First byte: what lies
between the whole request and the first text of its answer, less what the engine takes to its first token.

With `--clients` so many ask at the same time, of the engine and of the server in turn: tokens a second of all, from the
first token of the first answer to the end of the last, medians of five rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from exlchat import engine, paths
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest, Rank
from exlchat.llm.sampling import SamplingSettings

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds to the first text, and tokens a second behind it."""

    first: float
    rate: float


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(paths.bundled_model()))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, default=1)
    typed = parser.parse_args()
    # As the server has it, and as much cache as both have beside each other.
    kind = "fp32" if typed.device == "cpu" else "fp16"
    context = 2048
    here = engine.load(
        typed.model, device=typed.device, kv_cache=kind, max_seq_len=context, cache_tokens=context * (typed.clients + 1)
    )
    command = [
        sys.executable,
        "-m",
        "exlchat",
        "serve",
        typed.model,
        "--device",
        typed.device,
        "--port",
        "0",
        "--quiet",
        "--kv-cache",
        kind,
        "--context",
        str(context),
        "--cache-tokens",
        str(context * (typed.clients + 1)),
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = port_of(server)
        if typed.clients > 1:
            side_by_side(here, port, typed.clients, typed.tokens)
            return
        pairs = []
        for number in range(typed.rounds + 2):
            prompt = f"Question {number * 7919}: what is a page of the cache, and why are there several?"
            both = (asked_here(here, prompt, typed.tokens), asked_there(port, prompt, typed.tokens))
            # The first ones open what is opened once.
            pairs += [both] if number > 1 else []
    finally:
        server.terminate()
        server.wait()
    first = statistics.median(there.first - own.first for own, there in pairs)
    rate = statistics.median(there.rate / own.rate for own, there in pairs)
    own_rate = statistics.median(own.rate for own, _ in pairs)
    print(f"{here.info.name} on {here.info.device}, {typed.rounds} rounds of {typed.tokens} tokens")
    print(f"engine: {own_rate:,.1f} tokens/s, first token after {statistics.median(o.first for o, _ in pairs):.4f} s")
    print(f"server: {100 * rate:.1f} % of its tokens/s; first byte {1000 * first:.1f} ms beyond its first token")


def side_by_side(here: Engine, port: int, clients: int, tokens: int) -> None:
    rates: dict[str, list[float]] = {"engine": [], "server": []}
    asks: dict[str, Callable[[str], Took]] = {
        "engine": lambda prompt: asked_here(here, prompt, tokens),
        "server": lambda prompt: asked_there(port, prompt, tokens),
    }
    for number in range(6):
        prompts = [f"Question {number * 7919 + client}: what is a page of the cache?" for client in range(clients)]
        for name, ask in asks.items():
            began = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                found = list(pool.map(ask, prompts))
            taken = time.perf_counter() - began - min(one.first for one in found)
            # The first round captures what is captured once.
            rates[name] += [clients * tokens / taken] if number else []
    own, there = (statistics.median(rates[name]) for name in ("engine", "server"))
    print(f"{here.info.name} on {here.info.device}, {clients} clients at once, {tokens} tokens each")
    print(f"engine: {own:,.0f} tokens/s of all; server: {there:,.0f}, {100 * there / own:.1f} %")


def port_of(server: subprocess.Popen[str]) -> int:
    """Of a server, once it says where it can be asked."""
    assert server.stderr is not None
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        line = server.stderr.readline()
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
        if not line:
            break
    raise SystemExit("the server has not started")


def asked_here(model: Engine, prompt: str, tokens: int) -> Took:
    # What the server asks of its own engine for such a body, where the chat's settings are as they come.
    sampling = SamplingSettings(temperature=0.0, min_p=0.05)
    ids = model.encode(model.info.bos_token + prompt)
    request = GenerationRequest(
        ids, sampling, max_new_tokens=tokens, min_new_tokens=tokens, draft="auto", stop_repeating=True, rank=Rank.API
    )
    began = time.perf_counter()
    first = 0.0
    for event in model.generate(request):
        if isinstance(event, TextDelta) and not first:
            first = time.perf_counter()
        if isinstance(event, Finished):
            return Took(first - began, (len(event.token_ids) - 1) / (time.perf_counter() - first))
    raise AssertionError


def asked_there(port: int, prompt: str, tokens: int) -> Took:
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    data = json.dumps(body)
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
    reply = connection.getresponse()
    first, made = 0.0, 0
    while line := reply.readline():
        now = time.perf_counter()
        if line.startswith(b"data: {"):
            told = json.loads(line[6:])
            if not first and told["choices"] and told["choices"][0]["text"]:
                first = now
            if told.get("usage"):
                made = told["usage"]["completion_tokens"]
                last = now
    connection.close()
    assert reply.status == 200, reply.status
    return Took(first - began, (made - 1) / (last - first))


if __name__ == "__main__":
    main()

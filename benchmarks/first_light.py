"""The first minute in numbers: first paint, first token, and the guide's speed beside `transformers`.

    .venv/bin/python -m benchmarks.first_light

Prints a Markdown table with the machine named above it. The streaming cost has its own script, `streaming.py`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from exlchat import paths
from exlchat.engine import Finished, GenerationRequest, load
from exlchat.engine.formats import exl2

RUNS = 5
TOKENS = 200
EXLCHAT = Path(sys.executable).with_name("exlchat")
PROMPT = "<s><|im_start|>user\nHow do I load a model?<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Measures and prints."""
    guide = paths.bundled_model()
    first_paint = [seconds_to_first_paint() for _ in range(RUNS)]
    first_prompt = [seconds_to_first_paint("--line", sight=b"you>") for _ in range(RUNS)]
    first_token = [seconds_to_first_token() for _ in range(RUNS)]
    ours, theirs = decode_rates(guide)
    print(f"\n{machine()}; medians of {RUNS} runs, least to most in brackets.\n")
    print("| what | median | range |\n|---|---|---|")
    print(row("process start to first paint of the chat", first_paint, "s", 2))
    print(row("process start to the first prompt of `exlchat --line`", first_prompt, "s", 2))
    print(row("process start to the guide's first token (`exlchat ask`)", first_token, "s", 2))
    print(row(f"the guide, {TOKENS} greedy tokens, float32", ours, "tok/s", 0))
    print(row("the same weights in `transformers` generate", theirs, "tok/s", 0))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    print(row("ratio, run by run", ratios, "x", 2))


def row(what: str, values: list[float], unit: str, digits: int) -> str:
    """A line of the table."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"| {what} | {middle:.{digits}f} {unit} | {low:.{digits}f} to {high:.{digits}f} |"


def machine() -> str:
    """Processor, cores and versions."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = model[1] if model else "unknown processor"
    return f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, Python {sys.version.split()[0]}"


def fresh_home() -> dict[str, str]:
    """An environment in which the program has never run."""
    home = tempfile.mkdtemp(prefix="exlchat-benchmark-")
    return {**os.environ, "EXLCHAT_HOME": home, "TERM": "xterm-256color"}


def seconds_to_first_paint(*options: str, sight: bytes = b"rite a message") -> float:
    """Until a pseudo-terminal has received the composer's text (its first letter is under the blinking cursor)."""
    start = time.perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        os.execve(EXLCHAT, [str(EXLCHAT), "guide", *options], fresh_home())
    os.set_blocking(terminal, False)
    seen = b""
    while sight not in seen and time.perf_counter() - start < 30:
        if select.select([terminal], [], [], 0.01)[0]:
            seen += os.read(terminal, 65536)
    elapsed = time.perf_counter() - start
    os.write(terminal, b"\x11")
    drain(terminal)
    os.waitpid(process, 0)
    return elapsed


def drain(terminal: int) -> None:
    """Reads until the other side is gone."""
    while True:
        select.select([terminal], [], [], 5)
        try:
            if not os.read(terminal, 65536):
                return
        except OSError:
            return


def seconds_to_first_token() -> float:
    """From the start of `exlchat ask` to its first text event."""
    command = [str(EXLCHAT), "ask", "--jsonl", "--no-save", "-m", "guide", "How do I load a model?"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=fresh_home(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        elapsed = 0.0
        for line in process.stdout:
            if json.loads(line)["type"] == "text" and not elapsed:
                elapsed = time.perf_counter() - start
    return elapsed


def decode_rates(guide: Path) -> tuple[list[float], list[float]]:
    """Tokens a second of our generator and of `transformers`, alternating, prefill left out on both sides.

    `transformers` gets all threads, our engine the number that it chose when it loaded the guide.
    """
    all_threads = torch.get_num_threads()
    reference = transformers_model(guide)
    with tempfile.TemporaryDirectory() as folder:
        engine = load(endless_copy(guide, Path(folder)), device="cpu", kv_cache="fp32")
    own_threads = torch.get_num_threads()
    prompt = engine.encode(PROMPT)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(RUNS + 1):
        torch.set_num_threads(own_threads)
        last = list(engine.generate(GenerationRequest(prompt, max_new_tokens=TOKENS)))[-1]
        assert isinstance(last, Finished)
        assert last.stats.new_tokens == TOKENS
        ours.append(last.stats.tokens_per_second)
        torch.set_num_threads(all_threads)
        one, all_of_them = (generate_seconds(reference, prompt, count) for count in (1, TOKENS))
        theirs.append((TOKENS - 1) / (all_of_them - one))
    return ours[1:], theirs[1:]


def endless_copy(guide: Path, folder: Path) -> Path:
    """The guide without its stop ids, so that both sides generate the same number of tokens."""
    for file in guide.iterdir():
        if file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))
            for key in ("eos_token_id", "eos_token"):
                content.pop(key, None)
            (folder / file.name).write_text(json.dumps(content), encoding="utf-8")
        else:
            (folder / file.name).symlink_to(file)
    return folder


def transformers_model(guide: Path) -> LlamaForCausalLM:
    """The same weights, dequantized to float32, in the reference implementation."""
    stored = load_file(guide / "output.safetensors")
    weights = {name: tensor.float() for name, tensor in stored.items() if name.endswith(".weight")}
    config = LlamaConfig.from_pretrained(guide)
    del config.quantization_config
    for key in {name.removesuffix(".q_weight") for name in stored if name.endswith(".q_weight")}:
        weight = exl2.dequantize({name: stored[f"{key}.{name}"] for name in exl2.TENSORS}).float().T
        weights[f"{key}.weight"] = weight[: config.vocab_size] if key == "lm_head" else weight
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights)
    return model


@torch.inference_mode()
def generate_seconds(model: LlamaForCausalLM, prompt: list[int], count: int) -> float:
    """Wall time of `count` greedy tokens."""
    start = time.perf_counter()
    model.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

"""What `exlchat run` makes of a file, beside what `exlchat bench --batch` makes of as many answers side by side.

    python -m benchmarks.bulk [--shape llama-8b] [--mix 4.1bpw] [--rows 8,32] [--waves 12] [--tokens 512] [--device cpu]

A model of random weights is written to a folder; each run has so many prompts for every row, and every second one is
drawn with the usual samplers, as in the bench, whose rows are as long as the run's are on average. Both load it in a
process of their own, with an FP16 cache on a card. The run's rate is of all its seconds: with its prompts, which are
short, with what is captured when it begins, and with its end, when fewer rows are left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from exlchat.engine.bench.batches import NEW_TOKENS
from exlchat.engine.bench.figures import ALL_SAMPLERS
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.llm.sampling import GREEDY

PROMPT = 32
"""Tokens; the tokenizer of random models has one for each byte."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[8, 32])
    parser.add_argument("--waves", type=int, default=12, help="prompts of a row")
    parser.add_argument("--tokens", type=int, default=512, help="of an answer")
    parser.add_argument("--device", choices=sorted(NEW_TOKENS), default="cuda")
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        RandomCheckpoint(named_shape(typed.shape), parse_mix(typed.mix), device=typed.device).write(model)
        print("| rows | run, tok/s | rows at a time | bench, tok/s | run of bench |\n|--:|--:|--:|--:|--:|", flush=True)
        for rows in typed.rows:
            cache = "fp32" if typed.device == "cpu" else "fp16"
            options = ["--device", typed.device, "--kv-cache", cache]
            report = _run(model, rows, typed.waves * rows, typed.tokens, options)
            bench = _bench(model, rows, PROMPT + max(typed.tokens - NEW_TOKENS[typed.device], 0) // 2, options)
            rate = report["generated_tokens_per_second"]
            print(f"| {rows} | {rate:,.0f} | {report['rows']:.1f} | {bench:,.0f} | {rate / bench:.0%} |", flush=True)


def _run(model: Path, rows: int, lines: int, tokens: int, options: list[str]) -> dict[str, Any]:
    asked, answers = (model.parent / f"{rows}.{name}" for name in ("jsonl", "answers.jsonl"))
    prompts = (f"{number} ".ljust(PROMPT, "abcdefgh"[number % 8]) for number in range(lines))
    controls = ("temperature", "top_k", "top_p", "min_p")
    drawn = [{name: getattr(sampling, name) for name in controls} for sampling in (GREEDY, ALL_SAMPLERS)]
    bodies = ({"prompt": prompt, "max_tokens": tokens, **drawn[n % 2]} for n, prompt in enumerate(prompts))
    asked.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    command = ["run", str(asked), "-o", str(answers), "-m", str(model), "--rows", str(rows), "--template", "plain"]
    _exlchat(*command, "--context", str(2 * (PROMPT + tokens)), *options)
    report: dict[str, Any] = json.loads(answers.with_name(f"{answers.name}.report.json").read_text())
    if report["answered"] != lines:
        raise SystemExit(f"{lines - report['answered']} of {lines} were not answered")
    return report


def _bench(model: Path, rows: int, context: int, options: list[str]) -> float:
    results = model.parent / f"{rows}.json"
    command = ["bench", str(model), "--batch", "--rows", str(rows), "--contexts", str(context), "--json", str(results)]
    _exlchat(*command, *options)
    found = json.loads(results.read_text())
    return float(found["figures"][0]["median"])


def _exlchat(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "exlchat", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exlchat {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


if __name__ == "__main__":
    main()

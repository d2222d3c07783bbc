"""Makes the bundled model: `python -m guide.train` writes the corpus, tokenizer, weights and the EXL2 folder.

Needs a CUDA device; about six minutes on one H200. `--smoke` runs every step in small on the CPU and writes nothing
that should be shipped. `--validate 0.1` keeps a tenth of the question patterns out and measures on them instead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from exlchat.app.guide.facts import Fact, load_facts
from exlchat.engine.formats import exl2
from guide.corpus import dialogs, split_by_wording
from guide.dataset import Batch, Dataset
from guide.encoding import BOS, IM_END, Encoder, train_tokenizer, write_tokenizer_files
from guide.held_out import HeldOut, load_held_out
from guide.model import Guide, Size, greedy
from guide.packing import pack
from guide.wording import ask

WEIGHTS = "model.safetensors"
BUILD = Path(__file__).parent.parent / "build"
SHIPPED = Path(__file__).parent.parent / "exlchat" / "models" / "guide"


@dataclass(frozen=True)
class Plan:
    """How much is trained, and how fast."""

    size: Size = field(default_factory=Size)
    dialogs: int = 600_000
    steps: int = 9000
    seconds: float = 400.0
    batch_tokens: int = 49_152
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.1
    dropout: float = 0.15
    noise: float = 0.05
    """Share of question tokens replaced by any token, so that no single word decides."""


SMOKE = Plan(Size(vocab=1024, hidden=128, layers=2, heads=2, kv_heads=1, intermediate=256), 2000, 60, 120.0, 8192)


def main() -> None:
    """The whole way from facts to the model folder."""
    options = _options()
    if not options.smoke and not torch.cuda.is_available():
        raise SystemExit(
            "guide.train: needs an NVIDIA card with a CUDA build of torch; --smoke tries the steps on the CPU"
        )
    device = torch.device("cpu" if options.smoke else "cuda")
    plan = SMOKE if options.smoke else Plan(seconds=options.seconds)
    out = Path(tempfile.mkdtemp()) if options.smoke and options.out == SHIPPED else options.out
    torch.manual_seed(20261120)
    clock = time.perf_counter()
    facts, kept_out = split_by_wording(load_facts(), options.validate)
    tokenizer = train_tokenizer(_texts(facts, min(plan.dialogs, 60_000)), plan.size.vocab)
    encoder = Encoder(tokenizer.to_str())
    data = Dataset(
        facts,
        tokenizer.to_str(),
        count=plan.dialogs,
        longest=plan.size.context,
        device=device,
        workers=2 if options.smoke else min(16, os.cpu_count() or 1),
    )
    print(
        f"corpus: {plan.dialogs} dialogs, {data.tokens / 1e6:.1f} M tokens, {time.perf_counter() - clock:.0f} s",
        flush=True,
    )
    model = Guide(plan.size, plan.dropout).to(device)
    print(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    train(model, data, plan, device)
    if kept_out:
        validate(model, encoder, kept_out)
    export(model, tokenizer, out, device, tokens=16 * 1024 if options.smoke else 256 * 1024)
    load_quantized(model, out)
    score = ask_held_out(model, encoder, load_held_out())
    total = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {total / 1e6:.2f} MB; held-out {score}; {time.perf_counter() - clock:.0f} s in all", flush=True)


def train(model: Guide, data: Dataset, plan: Plan, device: torch.device) -> None:
    """AdamW with a short warm-up and a cosine down to zero, by steps or by the clock, whichever ends first."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda")
    batches = data.batches(plan.batch_tokens, seed=1)
    model.train()
    clock = time.perf_counter()
    for step in range(plan.steps):
        progress = max(step / plan.steps, (time.perf_counter() - clock) / plan.seconds)
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * min(1.0, (step + 1) / 200) * 0.5 * (1 + math.cos(math.pi * progress))
        loss = _loss(model, next(batches), plan.noise)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 500 == 0 or step == plan.steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - clock:.0f} s", flush=True)
    model.eval()


def export(model: Guide, tokenizer: Tokenizer, out: Path, device: torch.device, *, tokens: int) -> None:
    """Writes the EXL2 folder; the floats beside it are for whoever packs them otherwise."""
    floats = (BUILD if out == SHIPPED else out.parent) / f"{out.name}-float16"
    floats.mkdir(parents=True, exist_ok=True)
    write_tokenizer_files(tokenizer, floats)
    save_file({name: tensor.detach().half().cpu() for name, tensor in model.state_dict().items()}, floats / WEIGHTS)
    config = json.dumps(model.size.config(bos=BOS, eos=IM_END), indent=2)
    (floats / "config.json").write_text(f"{config}\n", encoding="utf-8")
    pack(floats, out, device, tokens=tokens)


def load_quantized(model: Guide, folder: Path) -> None:
    """Puts the weights of the EXL2 folder back into the model, as its users will have them."""
    stored = load_file(folder / "output.safetensors")
    state: dict[str, Tensor] = {}
    for name in model.state_dict():
        key = name.removesuffix(".weight")
        if f"{key}.q_weight" in stored:
            parts = {
                part: stored[f"{key}.{part}"]
                for part in ("q_weight", "q_invperm", "q_scale", "q_scale_max", "q_groups")
            }
            state[name] = exl2.dequantize(parts).float().T
        else:
            state[name] = stored[name].float()
    model.load_state_dict(state)


def validate(model: Guide, encoder: Encoder, kept_out: dict[str, Fact], count: int = 1500) -> None:
    """Asks questions made from patterns that training never saw, and prints the share answered and what went wrong."""
    random = Random(7)
    facts = [random.choice(list(kept_out.values())) for _ in range(count)]
    questions = [ask(fact, random) for fact in facts]
    answers = [
        encoder.decode(ids) for ids in greedy(model, [encoder.prompt([], question) for question in questions], IM_END)
    ]
    wrong = [
        (f, q, a)
        for f, q, a in zip(facts, questions, answers, strict=True)
        if not any(key.lower() in a.lower() for key in f.key)
    ]
    print(f"validation by wording: {1 - len(wrong) / count:.1%} of {count}")
    for fact, question, answer in wrong[:70]:
        print(f"  [{fact.id}] {question} -> {answer[:70]!r}")
    print(Counter(fact.id for fact, _, _ in wrong).most_common(30), flush=True)


def ask_held_out(model: Guide, encoder: Encoder, questions: list[HeldOut]) -> str:
    """Asks the held-out questions at temperature 0, prints the failures and returns the score."""
    earlier: list[list[tuple[str, str]]] = [[] for _ in questions]
    for depth in range(max(len(question.before) for question in questions)):
        waiting = [index for index, question in enumerate(questions) if depth < len(question.before)]
        prompts = [encoder.prompt(earlier[index], questions[index].before[depth]) for index in waiting]
        for index, ids in zip(waiting, greedy(model, prompts, IM_END), strict=True):
            earlier[index].append((questions[index].before[depth], encoder.decode(ids)))
    prompts = [encoder.prompt(said, question.ask) for said, question in zip(earlier, questions, strict=True)]
    passed = 0
    for question, ids in zip(questions, greedy(model, prompts, IM_END), strict=True):
        answer = encoder.decode(ids)
        passed += question.passed_by(answer)
        if not question.passed_by(answer):
            print(f"  FAILED {question.ask!r} -> {answer[:150]!r}")
    return f"{passed}/{len(questions)} = {passed / len(questions):.1%}"


def _loss(model: Guide, batch: Batch, noise: float) -> Tensor:
    ids, targets, weights = batch.ids[:, :-1], batch.ids[:, 1:], batch.weights[:, 1:]
    question = (batch.weights[:, :-1] > 0) & (batch.weights[:, :-1] < 1)
    swapped = question & (torch.rand(ids.shape, device=ids.device) < noise)
    ids = torch.where(swapped, torch.randint(4, model.size.vocab, ids.shape, device=ids.device), ids)
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        hidden = model.model(ids)
        counted = weights > 0
        logits = model.lm_head(hidden[counted])
    losses = functional.cross_entropy(logits.float(), targets[counted], reduction="none")
    chosen = weights[counted]
    return (losses * chosen).sum() / chosen.sum()


def _texts(facts: dict[str, Fact], count: int) -> list[str]:
    """What the tokenizer is trained on; answers fewer times than they occur, so that questions shape the tokens too."""
    texts: list[str] = []
    for number, dialog in enumerate(dialogs(count, "tokenizer", facts)):
        for turn in dialog.turns:
            texts.append(turn.question)
            if number % 10 == 0:
                texts.append(turn.answer)
    return texts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m guide.train", description="Trains the bundled model.")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="where the model folder is written")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny model for a few steps on the CPU, to try the script"
    )
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="longest training time")
    parser.add_argument(
        "--validate", type=float, default=0.0, metavar="SHARE", help="share of question patterns kept out"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

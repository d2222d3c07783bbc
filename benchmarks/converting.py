"""What converted files lose beside the original converter's, and how long a model takes.

    python -m benchmarks.converting quality SOURCE IDS [--text FILE] [--tokens 256k]
    python -m benchmarks.converting speed [--shape llama-8b] [--tokens 256k] [--card GIB]

`quality`: IDS is a safetensors file with `input_ids`, of which 16 rows of 1,024 are measured on. `speed`: two layers
and the head of random weights on a GPU, what that comes to for all layers of the shape, and the memory that it takes
of a card of so many GiB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from exlchat.engine.bench.random_checkpoint import tokenizer_json
from exlchat.engine.bench.shapes import Shape, named_shape
from exlchat.engine.convert.conversion import Step
from exlchat.engine.convert.run import Wishes, convert
from exlchat.engine.evaluate.compare import figures_of, read
from exlchat.engine.placement import choose_device
from exlchat.engine.weights.checkpoint import Checkpoint

ROWS, LENGTH = 16, 1024
# Of the original converter, version 0.3.2, on tiny-llama: bytes, divergence, perplexity.
ORIGINAL = {
    6.0: (11_790_000, 0.0043, 18.26),
    4.0: (9_362_832, 0.0669, 18.84),
    3.0: (8_150_000, 0.328, 22.90),
    2.5: (7_540_000, 0.549, 24.72),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("quality", "speed"))
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("ids", nargs="?", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=256 * 1024)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--card", type=float, help="GiB; the rest of the card's memory is taken away")
    parser.add_argument("--head", type=int, nargs="*", default=[0], help="0: with the body; else its bits")
    typed = parser.parse_args()
    device = choose_device("auto")
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {typed.tokens:,} tokens\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if typed.what == "quality":
            quality(typed, device, Path(folder))
        else:
            speed(named_shape(typed.shape), typed.tokens, typed.card, device, Path(folder))


def quality(typed: argparse.Namespace, device: torch.device, folder: Path) -> None:
    rows = load_file(typed.ids)["input_ids"].flatten()[: ROWS * LENGTH].view(ROWS, LENGTH).long()
    reference = read(Checkpoint(typed.source), rows, device)
    print("| bits | head | bytes | original | perplexity | original | divergence | original | ratio | same token |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for head in typed.head:
        wishes = Wishes(
            typed.source,
            folder / f"head-{head}",
            tuple(ORIGINAL),
            device,
            head_bits=head or None,
            text=typed.text,
            tokens=typed.tokens,
            work=folder / "work",
        )
        for written in convert(wishes, lambda _: None, print):
            bits = float(written.folder.name.removesuffix("bpw"))
            size, divergence, perplexity = ORIGINAL[bits]
            found = figures_of(read(Checkpoint(written.folder), rows, device), rows, reference)
            assert found.divergence is not None
            own = found.divergence.mean
            print(
                f"| {bits} | {written.head_bits:.2f} | {written.bytes:,} | {size:,} | {found.perplexity:.3f} | "
                f"{perplexity} | {own:.4f} | {divergence} | {own / divergence:.2f} | {100 * found.same:.1f} % |",
                flush=True,
            )


def speed(shape: Shape, tokens: int, card: float | None, device: torch.device, folder: Path) -> None:
    layers = 2
    beside = torch.empty(0, dtype=torch.uint8, device=device)
    if card is not None:
        free, _ = torch.cuda.mem_get_info(device)
        beside = torch.empty(max(free - int(card * 2**30), 0), dtype=torch.uint8, device=device)
    source = write_random(shape, layers, folder / "source", device)
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + number * number * 7919 % 26) for number in range(2 * tokens)), encoding="utf-8")
    spent: dict[str, list[float]] = {}
    peaks: dict[str, list[float]] = {}
    last = time.monotonic()

    def peak(phase: str) -> None:
        most = torch.cuda.max_memory_allocated(device) - beside.numel()
        peaks.setdefault(phase, []).append(round(most / 2**30, 1))
        torch.cuda.reset_peak_memory_stats(device)

    def note(step: Step) -> None:
        nonlocal last
        if step.line:
            peak(step.phase)
            return
        if device.type == "cuda":
            torch.cuda.synchronize()
        now = time.monotonic()
        spent.setdefault(step.phase, []).append(now - last)
        last = now
        peak(step.phase)

    began = time.monotonic()
    try:
        convert(Wishes(source, folder / "out", (4.0,), device, text=text, tokens=tokens), note, print)
    finally:
        peak("reading back")
        print("peaks of memory, GiB:", ", ".join(f"{phase} {most}" for phase, most in peaks.items()))
    print(f"{shape.name}, {layers} layers and the head: {time.monotonic() - began:.0f} s in all")
    total = 0.0
    for phase, seconds in spent.items():
        # The first of a phase opens files and makes statistics anew; the last is the head's.
        of_layer = seconds[-1] if phase == "sensitivity" else seconds[layers - 1]
        head = 0.0 if phase == "sensitivity" else seconds[-1]
        all_layers = of_layer * shape.layers * (2 if phase == "sensitivity" else 1) + head
        total += all_layers
        print(f"{phase}: {of_layer:.1f} s a layer, head {head:.1f} s, all {all_layers / 60:.1f} min ({seconds})")
    print(f"{shape.name}, {shape.layers} layers: {total / 60:.1f} min")
    print(f"peak memory: {max(map(max, peaks.values())):.1f} GiB")


def write_random(shape: Shape, layers: int, folder: Path, device: torch.device) -> Path:
    """A float16 model of so many layers."""
    folder.mkdir()
    config = {**shape.config(), "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(shape.vocab)))
    sizes = {
        "self_attn.q_proj": (shape.queries, shape.hidden),
        "self_attn.k_proj": (shape.keys, shape.hidden),
        "self_attn.v_proj": (shape.keys, shape.hidden),
        "self_attn.o_proj": (shape.hidden, shape.queries),
        "mlp.gate_proj": (shape.inner, shape.hidden),
        "mlp.up_proj": (shape.inner, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.inner),
    }
    tensors = {
        "model.embed_tokens.weight": _random((shape.vocab, shape.hidden), device),
        "lm_head.weight": _random((shape.vocab, shape.hidden), device),
        "model.norm.weight": torch.ones(shape.hidden).half(),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, size in sizes.items():
            tensors[f"{prefix}.{name}.weight"] = _random(size, device)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = torch.ones(shape.hidden).half()
    save_file(tensors, folder / "model.safetensors")
    return folder


def _random(size: tuple[int, int], device: torch.device) -> torch.Tensor:
    return (torch.randn(size, device=device) / size[1] ** 0.5).half().cpu()


if __name__ == "__main__":
    main()

"""The decode step of architectures of every kind in their published sizes, random weights in 4 bits, on a GPU.

    python -m benchmarks.families [NAME ...]
    python -m benchmarks.families --rows [NAME ...]
    python -m benchmarks.families --prompts [NAME ...]

    python -m benchmarks.families --host-layers N ...

Of large models some layers stand for all: a step's time grows by each of them alike. Beside the time of a step, without
the sampler and behind 128 cached tokens, stand the bytes that a token reads over it and their share of the copy
bandwidth of the same run. With `--rows` it is steps of several tokens of one sequence, in microseconds and times a step
of one. With `--prompts` it is the time of prompts of several lengths, in milliseconds a layer: the
best of five, the host's work included. With `--host-layers` the weights of so many layers, of mixtures their experts,
lie in the machine's memory.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels import exl2, widened
from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.decode.fit import why_not
from exlchat.engine.decode.over_cards import splits_of
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.linear import Linear
from exlchat.engine.layers.operations import KernelOperations, Operations
from exlchat.engine.layers.quantized_linear import Launch, QuantizedLinear, Scratch
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels

DEVICE = torch.device("cuda")
CACHED = 128
PROMPTS = (8, 16, 50, 128, 512, 2048)
"""Tokens."""
ROWS = (1, 2, 4, 8)
"""Tokens of a step."""
FOUR_BITS = (Section(4, 1.0, 128),)


def sizes(
    architecture: str, hidden: int, inner: int, layers: int, heads_and_vocab: tuple[int, int, int, int]
) -> dict[str, Any]:
    """Keys of `config.json`; the last are heads of queries and of keys, elements of one, and tokens."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads_and_vocab[0],
        "num_key_value_heads": heads_and_vocab[1],
        "head_dim": heads_and_vocab[2],
        "vocab_size": heads_and_vocab[3],
        "max_position_embeddings": 8192,
    }


# As their config.json say, with fewer layers where there are experts.
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B": sizes("LlamaForCausalLM", 4096, 14336, 32, (32, 8, 128, 128256)),
    "Qwen2.5 7B": sizes("Qwen2ForCausalLM", 3584, 18944, 28, (28, 4, 128, 152064)),
    "Qwen3 8B": sizes("Qwen3ForCausalLM", 4096, 12288, 36, (32, 8, 128, 151936)),
    "Gemma 2 9B": sizes("Gemma2ForCausalLM", 3584, 14336, 42, (16, 8, 256, 256000)),
    "Gemma 3 12B": sizes("Gemma3ForCausalLM", 3840, 15360, 48, (16, 8, 256, 262208))
    | {"sliding_window": 1024, "num_attention_heads": 16},
    "Phi-3 mini": sizes("Phi3ForCausalLM", 3072, 8192, 32, (32, 32, 96, 32064)),
    "GLM-4 9B": sizes("Glm4ForCausalLM", 4096, 13696, 40, (32, 2, 128, 151552)),
    "Command-R7B": sizes("Cohere2ForCausalLM", 4096, 14336, 32, (32, 8, 128, 256000)),
    "Granite 3 8B": sizes("GraniteForCausalLM", 4096, 12800, 40, (32, 8, 128, 49152))
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125}
    | {"logits_scaling": 16.0},
    "OLMo 2 7B": sizes("Olmo2ForCausalLM", 4096, 11008, 32, (32, 32, 128, 100352)),
    "Qwen3 30B-A3B, 8 of 48 layers": sizes("Qwen3MoeForCausalLM", 2048, 6144, 8, (32, 4, 128, 151936))
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    "Mixtral 8x7B, 8 of 32 layers": sizes("MixtralForCausalLM", 4096, 14336, 8, (32, 8, 128, 32000))
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen1.5 MoE A2.7B, 6 of 24 layers": sizes("Qwen2MoeForCausalLM", 2048, 5632, 6, (16, 16, 128, 151936)),
}


class RandomLayers:
    """In the place of a `LayerLoader`: random weights of the sizes asked for, matrices of layers in 4 bits.

    Args:
        kernels: on the device.
        several: so many matrices of equal size have weights of their own; more share them in turn.
    """

    device = DEVICE

    def __init__(self, kernels: Kernels, several: int = 400) -> None:
        self.kernels = self._kernels = kernels
        self._several = several
        self._scratch = Scratch(DEVICE)
        self._made: dict[tuple[int, int], list[PackedMatrix]] = {}
        self._asked: dict[tuple[int, int], int] = {}
        self._narrow: dict[int, PackedMatrix] = {}

    def has(self, key: str) -> bool:  # noqa: ARG002
        """Nothing is joined."""
        return False

    def linear(self, key: str, features: int, outputs: int, **_: bool) -> QuantizedLinear:  # noqa: ARG002
        """Without its bias, which costs nothing."""
        size = (features, outputs)
        made, asked = self._made.setdefault(size, []), self._asked.get(size, 0)
        self._asked[size] = asked + 1
        if len(made) < self._several:
            # Those that read the same input read it in the same order, as converters write them.
            if features not in self._narrow:
                self._narrow[features] = exl2(features, FOUR_BITS)
            made.append(widened(self._narrow[features], outputs))
        matrix = made[asked % len(made)]
        return QuantizedLinear((matrix,), (outputs,), self._kernels, self._scratch)

    def float_linear(self, key: str, features: int, outputs: int, **_: bool) -> Linear:
        """A small one."""
        return Linear(self.tensor(key, (outputs, features)))

    def tensor(self, name: str, shape: tuple[int, ...], *_: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        """Norms, embeddings, sinks."""
        return torch.randn(shape, dtype=torch.float16, device=DEVICE) * 0.02

    def float_head(self, head: Linear) -> Linear:
        """As it is."""
        return head


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--rows", action="store_true", help="steps of several tokens, too")
    parser.add_argument("--prompts", action="store_true", help="prompts instead of steps")
    parser.add_argument("--host-layers", metavar="N", type=int, default=0, help="layers in the machine's memory")
    typed = parser.parse_args()
    names = typed.names or list(MODELS)
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    limit = copy_bandwidth()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    if typed.prompts:
        print("| ms a layer, tokens: | " + " | ".join(f"{tokens:,}" for tokens in PROMPTS) + " |")
        print("|---" + "|--:" * len(PROMPTS) + "|")
        for name in names:
            print(prompt_row(name, kernels, typed.host_layers), flush=True)
        return
    if typed.rows:
        print(f"| us a step, tokens: | {' | | '.join(map(str, ROWS))} |\n|---" + "|--:" * (2 * len(ROWS) - 1) + "|")
        for name in names:
            print(rows_row(name, kernels, typed.host_layers), flush=True)
        return
    print("| model | kernels | us a step | steps/s | GB | TB/s | of the copy |\n|---|--:|--:|--:|--:|--:|--:|")
    for name in names:
        print(row(name, kernels, limit, typed.host_layers), flush=True)


def made(name: str, kernels: Kernels, hosted: int, operations: Operations | None = None) -> Transformer:
    """One model, so many layers of which have their weights in the machine's memory."""
    spec, layers = read_spec(MODELS[name], name), RandomLayers(kernels)
    split = LayerSplit((DEVICE,), (spec.num_layers,), hosted=min(hosted, spec.num_layers))
    return load_transformer(spec, layers, True, lambda: None, operations, split=split)  # type: ignore[arg-type]


def opened(name: str, kernels: Kernels, hosted: int = 0) -> tuple[Transformer, DecodePlan]:
    """One model, and its steps of up to 8 tokens behind those that are cached."""
    transformer = made(name, kernels, hosted)
    spec = transformer.spec
    cache = KVCache(spec, "fp16", torch.float16, DEVICE, CACHED + ROWS[-1])
    sequence = KVSequence(cache)
    sequence.reserve(CACHED + ROWS[-1])
    if (why := why_not(transformer, cache)) is not None:
        raise SystemExit(f"{name}: {why}")
    chain = DecodePlan(transformer, cache, kernels, splits=splits_of(spec, DEVICE), rows=ROWS[-1])
    chain.tables.show(cache.tables, [sequence.row])
    chain.position.copy_(torch.arange(CACHED, CACHED + ROWS[-1]))
    return transformer, chain


def seconds_of(jobs: Sequence[Launch]) -> float:
    """Of a replay."""
    for job in jobs:  # CUDA loads kernels when they are first launched, which must not fall into a capture
        job.launch(dependent=False)
    return graph_seconds(jobs, dependent=True)


@torch.inference_mode()
def rows_row(name: str, kernels: Kernels, hosted: int) -> str:
    """One model."""
    _, chain = opened(name, kernels, hosted)
    one, *more = (seconds_of(chain.jobs(rows)) for rows in ROWS)
    cells = (f"{seconds * 1e6:.0f} | {seconds / one:.2f}" for seconds in more)
    return f"| {name} | {one * 1e6:.0f} | {' | '.join(cells)} |"


@torch.inference_mode()
def row(name: str, kernels: Kernels, limit: float, hosted: int) -> str:
    """One model."""
    transformer, chain = opened(name, kernels, hosted)
    jobs = chain.jobs(1)
    seconds, read = seconds_of(jobs), transformer.bytes_per_token
    speed = f"{seconds * 1e6:.0f} | {1 / seconds:.0f} | {read / 1e9:.2f} | {read / seconds / 1e12:.2f}"
    return f"| {name} | {len(jobs)} | {speed} | {read / seconds / limit:.0%} |"


@torch.inference_mode()
def prompt_row(name: str, kernels: Kernels, hosted: int) -> str:
    """One model."""
    transformer = made(name, kernels, hosted, KernelOperations(kernels))
    spec = transformer.spec
    best = [math.inf] * len(PROMPTS)
    for place, tokens in enumerate(PROMPTS):
        ids = torch.zeros(tokens, dtype=torch.int64, device=DEVICE)
        for _ in range(6):  # the first one makes room
            torch.cuda.synchronize()
            begun = time.perf_counter()
            transformer.forward(ids)
            torch.cuda.synchronize()
            best[place] = min(best[place], time.perf_counter() - begun)
    return f"| {name} | " + " | ".join(f"{seconds / spec.num_layers * 1e3:.2f}" for seconds in best) + " |"


if __name__ == "__main__":
    main()

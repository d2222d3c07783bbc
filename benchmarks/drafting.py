"""What drafting brings: tokens a second with and without, on a GPU.

    python -m benchmarks.drafting [--shape llama-8b] [--draft-shape llama-1b] [--tokenizer FOLDER]
        [--only "draft model"]

Weights are random, so that any size can be measured, and a random model's text would never repeat anything. So the
answer is given: every step and every check is computed in full, and in place of the token that comes out the next one
of the given answer is taken. For (a) the answer is one of our own files after an edit, behind the file as it was, and
the guesses are those that the conversation gives; for (b) a draft model computes its guesses in full, and they are
right at a rate that is given: which rate a pair of models reaches only its users can see.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.compiled import compiled_library
from benchmarks.rows import open_model
from benchmarks.timing import copy_bandwidth
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.draft.draft_model import ModelDrafter
from exlchat.engine.draft.drafting import DraftCount, DraftedTokens, Drafter, DraftLength
from exlchat.engine.draft.ngram_drafter import NgramDrafter
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.token_sources import RunAheadTokens
from exlchat.ext.ops import Kernels
from exlchat.llm.events import DecodePath
from exlchat.llm.sampling import GREEDY
from exlchat.paths import bundled_model

HOUSE = Path(__file__).resolve().parents[1] / "exlchat"
ROOM = 32768
ROW_COST = 0.05
MOST = 1500
"""Tokens of an answer."""


class Given:
    """A model whose answer is given: everything is computed, and another token comes out."""

    def __init__(self, transformer: Transformer, sequence: KVSequence, kernels: Kernels) -> None:
        self.runner, self.sequence = Runner(transformer), sequence
        self.graphs = DecodeGraphs(transformer, sequence.cache, kernels)

    def seconds(self, prompt: list[int], answer: list[int], drafter: Drafter | None) -> tuple[float, DraftCount]:
        """Of the answer, once; and the guesses."""
        sequence, count = self.sequence, DraftCount()
        sequence.begin(prompt, most=0)
        for start in range(0, len(prompt), 1024):
            self.runner.last_logits(sequence, prompt[start : start + 1024])
        context = [*prompt, answer[0]]

        def plain() -> _GivenTokens:
            source = RunAheadTokens(
                self.graphs, sequence, context, DeviceDraws(GREEDY, 0, index=0), most=ROOM - len(context)
            )
            return _GivenTokens(source, lambda: answer[min(len(context) - len(prompt), len(answer) - 1)])

        def cut(length: int) -> None:
            sequence.cut(length)

        def check(ids: list[int]) -> list[int]:
            first = len(context) - len(prompt)
            self.graphs.greedy(sequence, ids, len(sequence))
            sequence.extend(ids)
            return [answer[min(first + number, len(answer) - 1)] for number in range(len(ids))]

        source = (
            plain()
            if drafter is None
            else DraftedTokens(
                plain=plain,
                check=check,
                cut=cut,
                draw=lambda token: token,
                context=context,
                room=ROOM,
                drafter=drafter,
                length=DraftLength(ROW_COST),
                count=count,
            )
        )
        torch.cuda.synchronize()
        start_time = time.perf_counter()
        while len(context) - len(prompt) < len(answer):
            source.go_on()
            context.append(source.follow(context[-1]))
        source.close()
        seconds = time.perf_counter() - start_time
        return seconds, count


class _GivenTokens:
    """A plain source, whose tokens are replaced; what the device feeds itself is another token of the same cost."""

    path: DecodePath = "run-ahead"

    def __init__(self, source: RunAheadTokens, token: Callable[[], int]) -> None:
        self._source, self._token = source, token

    @property
    def busy(self) -> bool:
        """See `TokenSource`."""
        return self._source.busy

    def follow(self, token: int) -> int:
        """See `TokenSource`."""
        self._source.follow(token)
        return self._token()

    def go_on(self) -> None:
        """See `TokenSource`."""
        self._source.go_on()

    def stands_by(self) -> bool:
        """See `TokenSource`."""
        return self._source.stands_by()

    def close(self) -> None:
        """See `TokenSource`."""
        self._source.close()


class RightAtRate:
    """A draft model that computes its guesses, each of which is replaced by the right token at a rate.

    Its cache is told that it holds the replaced ones, as it would if they were its own: a guess that was right is not
    computed again.
    """

    def __init__(self, model: ModelDrafter, sequence: KVSequence, ids: Sequence[int], rate: float) -> None:
        self._model, self._sequence, self._ids, self._rate = model, sequence, list(ids), rate
        self._random = random.Random(1)

    def guess(self, context: Sequence[int], most: int) -> list[int]:
        """See `drafting.Drafter`."""
        guesses = self._model.guess(context, most)
        for number in range(len(guesses)):
            right = self._ids[min(len(context) + number, len(self._ids) - 1)]
            guesses[number] = right if self._random.random() < self._rate else (right + 1) % 1000
        if guesses:
            self._sequence.cut(len(context) - 1)
            self._sequence.reserve(len(context) + len(guesses))
            self._sequence.extend([context[-1], *guesses[:-1]])
        return guesses


def edit(text: str) -> str:
    """A file after an edit as people ask for: a word is renamed, each method tells that it begins, comments go."""
    lines = []
    for line in text.replace("pool", "page_pool").splitlines():
        if line.lstrip().startswith("#"):
            continue
        lines.append(line)
        if line.startswith("    def ") and line.endswith(":"):
            lines.append(f'        log.debug("{line.split("(")[0].split()[-1]}")')
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--draft-shape", default="llama-1b")
    parser.add_argument("--tokenizer", type=Path, default=bundled_model())
    parser.add_argument("--only", default="", help="answers whose name holds this")
    typed = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(typed.tokenizer / "tokenizer.json"))
    limit = copy_bandwidth()
    kernels = Kernels(compiled_library())
    transformer, (sequence,) = open_model(typed.shape, typed.mix, "fp16", ROOM, kernels)
    sequence.close()
    given = Given(transformer, sequence, kernels)
    small, (drafted,) = open_model(typed.draft_shape, typed.mix, "fp16", ROOM, kernels)
    drafted.close()
    drafting = ModelDrafter(Runner(small, DecodeGraphs(small, drafted.cache, kernels)), drafted)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s")
    print(f"{typed.shape}, {typed.mix}; draft model {typed.draft_shape}\n")
    print("| answer | tokens | guesses | right | tok/s without | tok/s with | times |\n|:--|--:|--:|--:|--:|--:|--:|")
    cases: list[tuple[str, list[int], list[int], Callable[[], Drafter]]] = []
    for name in ("engine/kv/cache.py", "engine/kv/pool.py", "chat/turn_plan.py"):
        before = (HOUSE / name).read_text("utf-8")
        ids = tokenizer.encode(before, add_special_tokens=False).ids
        answer = tokenizer.encode(edit(before), add_special_tokens=False).ids[:MOST]
        cases.append((f"edit of {Path(name).name}, n-gram", [*ids, 5, 6, 7], answer, NgramDrafter))
    prompt, answer = (
        tokenizer.encode((HOUSE / "engine" / name).read_text("utf-8"), add_special_tokens=False).ids[:most]
        for name, most in (("model/spec.py", 1000), ("layers/rope.py", 800))
    )
    cases.append(("new text, n-gram", prompt, answer, NgramDrafter))
    for rate in (0.5, 0.7, 0.8, 0.9):
        drafter = partial(RightAtRate, drafting, drafted, [*prompt, *answer], rate)
        cases.append((f"draft model, right at {rate:.0%}", prompt, answer, drafter))
    for case in cases:
        if typed.only in case[0]:
            row(given, *case)


def row(given: Given, name: str, prompt: list[int], answer: list[int], drafter: Callable[[], Drafter]) -> None:
    """One line of the table, medians of three."""
    plain = sorted(given.seconds(prompt, answer, None)[0] for _ in range(3))[1]
    runs = sorted((given.seconds(prompt, answer, drafter()) for _ in range(3)), key=lambda run: run[0])
    seconds, count = runs[1]
    rates = (len(answer) - 1) / plain, (len(answer) - 1) / seconds
    share = count.accepted / count.drafted if count.drafted else 0.0
    print(
        f"| {name} | {len(answer):,} | {count.drafted:,} | {share:.0%} | {rates[0]:.0f} | {rates[1]:.0f} | "
        f"{rates[1] / rates[0]:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()

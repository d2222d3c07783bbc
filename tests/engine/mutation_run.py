"""Many damaged model folders through `exlchat ask`: `python -m tests.engine.mutation_run [COUNT] [SEED]`.

Each is tried in a process of its own, with 20 s and 2 GiB of addresses. No trial may hang, end by a signal, show a
traceback or say more than a line about the folder; exit code 1 where there is one. Three minutes for 400.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.engine.mutations import Mutation, every_mutation, mutated
from tests.engine.test_mutated_models import DENSE, QUANTIZED, dense, quantized
from tests.untrusted.trials import SECONDS, Trial, trials


def asking(folder: Path) -> tuple[str, ...]:
    """A command that reads all of a folder."""
    return ("ask", "hello", "--model", str(folder), "--device", "cpu", "--max-tokens", "2", "--no-save")


def fault(trial: Trial) -> str | None:
    """What is wrong with how one ended."""
    if trial.fault is not None:
        return trial.fault
    complaints = [line for line in trial.err.splitlines() if line]
    if any(not line.startswith("exlchat: ") for line in complaints):
        return f"says something else: {trial.err[-300:]!r}"
    if trial.code not in (0, 1) or (trial.code == 1 and len(complaints) != 1):
        return f"exit code {trial.code} with {len(complaints)} lines: {trial.err[-300:]!r}"
    return None


def bases(root: Path) -> dict[str, Path]:
    """Folders that are whole, by what they are."""
    made = {name: dense(name, root / name) for name in DENSE}
    return made | {name: quantized(root / "llama", root / name, write) for name, write in QUANTIZED.items()}


def main(count: int, seed: int) -> int:
    """Tries so many; how many went wrong."""
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    slowest, largest, wrong = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        whole = bases(root)
        every: list[tuple[str, Mutation]] = [
            (name, mutation) for name, folder in whole.items() for mutation in every_mutation(folder, seed)
        ]
        with trials(root / "home", *asking(whole["llama"])) as ready:
            for name, mutation in chance.sample(every, count):
                trial = ready.run(*asking(mutated(whole[name], mutation, root / "model")))
                slowest, largest = max(slowest, trial.seconds), max(largest, trial.peak)
                ends["refused" if trial.code == 1 else "answered" if trial.code == 0 else "broken"] += 1
                if (said := fault(trial)) is not None:
                    wrong += 1
                    print(f"{name}: {mutation.label}: {said}")  # noqa: T201
    told = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
    print(  # noqa: T201
        f"{count} of {len(every)} damaged folders (seed {seed}): {told}; {wrong} faults; "
        f"the slowest {slowest:.1f} s of {SECONDS:.0f}, the largest {largest / 2**20:.0f} MiB"
    )
    return wrong


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]]
    sys.exit(1 if main(*(given + [400, 0][len(given) :])) else 0)

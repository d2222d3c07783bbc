"""What the engine leaves on the disk until it is needed: the first token waits for every import."""

from __future__ import annotations

import subprocess
import sys

ANSWER = """
import sys
from exlchat import engine, paths
from exlchat.llm.request import GenerationRequest

model = engine.load(paths.bundled_model(), device="cpu")
list(model.generate(GenerationRequest(model.encode("How do I quit?"), max_new_tokens=2)))
print(*sorted({"llguidance", "torch._dynamo", "sympy", "transformers"} & sys.modules.keys()))
"""


def test_an_answer_on_the_cpu_needs_neither_torchs_compiler_nor_the_grammar_library() -> None:
    done = subprocess.run([sys.executable, "-c", ANSWER], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"

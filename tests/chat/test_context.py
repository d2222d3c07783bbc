from __future__ import annotations

import pytest

from exlchat.chat.context import ContextFull, ContextUse, context_use, require_room
from exlchat.chat.conversation import Message
from exlchat.chat.prompt_format import BUILT_IN
from tests.chat.scripted_engine import ScriptedEngine


def test_a_prompt_that_leaves_room_for_an_answer_fits() -> None:
    require_room(68, 100)
    require_room(97, 100, max_new_tokens=3)
    require_room(68, 100, max_new_tokens=1000)


@pytest.mark.parametrize(("prompt", "max_new_tokens"), [(69, None), (98, 3), (69, 1000), (5000, None)])
def test_what_does_not_fit_is_said_with_its_numbers(prompt: int, max_new_tokens: int | None) -> None:
    with pytest.raises(ContextFull) as caught:
        require_room(prompt, 100, max_new_tokens=max_new_tokens)
    line = str(caught.value)
    assert "\n" not in line
    for part in (f"{prompt:,} tokens", "holds 100", "new conversation", "--context"):
        assert part in line
    assert (caught.value.prompt_tokens, caught.value.max_seq_len) == (prompt, 100)


def test_use_counts_the_branch_without_the_next_answers_opening() -> None:
    engine = ScriptedEngine(max_seq_len=500)
    branch = [Message("1", None, "user", "Hello", 0.0), Message("2", "1", "assistant", "Hi", 0.0)]
    text = "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n"
    assert context_use(engine, branch, BUILT_IN["chatml"]) == ContextUse(engine.count(text), 500)
    assert context_use(engine, [], BUILT_IN["chatml"]) == ContextUse(0, 500)

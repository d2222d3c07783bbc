from __future__ import annotations

import pytest

from exlchat.chat.context import ContextFull, require_room


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

"""What reading again would cost: of what the model would be shown, not of what is in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.cost import prompt_cost
from exlchat.chat.prompt.summary import SUMMARY_HEAD
from exlchat.chat.store.conversations import ConversationStore
from tests.chat import templates
from tests.chat.scripted_engine import ScriptedEngine
from tests.chat.talk import Talk


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    return Talk(ConversationStore(None), ScriptedEngine(chat_template=templates.CHATML, max_seq_len=1024))


def last_turn(talk: Talk) -> int:
    """Tokens of the last prompt, of its answer, and of what the template puts behind that."""
    return (
        len(talk.engine.requests[-1].prompt_ids)
        + len(talk.said[-1].token_ids)
        + len(talk.engine.encode("<|im_end|>\n"))
    )


@pytest.mark.parametrize("policy", ["drop", "summarise"])
def test_what_is_no_longer_seen_costs_nothing_and_the_summary_does(talk: Talk, policy: ContextPolicy) -> None:
    talk.ask(policy)
    branch = talk.store.load(talk.id).branch
    assert prompt_cost(talk.engine, branch, policy=policy).prompt_tokens == last_turn(talk)
    talk.until_cut(policy)
    assert (SUMMARY_HEAD in talk.prompt) == (policy == "summarise")
    branch = talk.store.load(talk.id).branch
    assert prompt_cost(talk.engine, branch, policy=policy).prompt_tokens == last_turn(talk)
    whole = prompt_cost(talk.engine, branch, policy="stop").prompt_tokens
    assert whole > 1024 * 7 // 8 > last_turn(talk)


def test_a_branch_up_to_an_edit_before_the_cut_is_seen_whole(talk: Talk) -> None:
    talk.ask("summarise")
    first = last_turn(talk)
    talk.until_cut("summarise")
    branch = talk.store.load(talk.id).branch
    assert branch[2].role == "assistant"
    assert prompt_cost(talk.engine, branch[:3]).prompt_tokens == first


def test_of_a_prompt_that_is_cached_as_a_whole_one_token_is_read(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(ids: Sequence[int]) -> int:
        return len(ids)

    monkeypatch.setattr(talk.engine, "cached_tokens", all_of_them)
    assert prompt_cost(talk.engine, talk.store.load(talk.id).branch).new_tokens == 0
    talk.ask("stop")
    cost = prompt_cost(talk.engine, talk.store.load(talk.id).branch)
    assert (cost.new_tokens, cost.cached_tokens) == (1, cost.prompt_tokens - 1)
    assert prompt_cost(talk.engine, ()).new_tokens == 0

"""What turns cost, from messages down to the decoder: every token that passes through it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from exlchat.chat.model import Message
from exlchat.chat.prompt.cost import prompt_cost
from exlchat.chat.prompt.ids import prompt_ids, prompt_messages
from exlchat.chat.prompt_format import choose_format
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import GenerationRequest, LocalEngine, load
from exlchat.llm.sampling import SamplingSettings
from tests.engine.counting import PassedTokens
from tests.patience import PATIENCE
from tests.random_models import edit_json, save_random_llama

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The thinking of earlier answers is left out, as reasoning models want it.
THINKING = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
SYSTEM = "You are a careful assistant who answers at length. " * 12
OPTIONS = TurnOptions(SamplingSettings(temperature=1.2), max_new_tokens=24)


class Chat:
    """A conversation with a random model, and how many tokens of each prompt were computed."""

    def __init__(self, engine: LocalEngine, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.template = engine, str(template)
        self.store = ConversationStore(None)
        self._passed = PassedTokens(monkeypatch)

    def new(self, system: str | None = None) -> str:
        ident = self.store.create_conversation().id
        if system:
            self.store.add_message(ident, "system", system)
        return ident

    def answer(self, ident: str, text: str | None = None, seed: int = 1, **options: str) -> Message:
        """The answer; `self.computed` and `self.prompt` tell about its prompt."""
        if text is not None:
            self.store.add_message(ident, "user", text)
        before = self._passed.count
        wanted = TurnOptions(OPTIONS.sampling, template=self.template, seed=seed, max_new_tokens=24)
        *_, closed = answer(self.store, self.engine, ident, wanted, **options)
        assert isinstance(closed, AnswerClosed)
        assert closed.finished is not None
        stats = closed.finished.stats
        self.prompt = stats.prompt_tokens
        self.computed = self._passed.count - before - max(stats.new_tokens - 1, 0)
        assert self.computed == stats.prompt_tokens - stats.cached_tokens
        return closed.message

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Of the prompt that a branch makes."""
        form, _ = choose_format(self.engine.info, self.template)
        return prompt_ids(self.engine, prompt_messages(messages), form)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path, max_position_embeddings=8192)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


@pytest.fixture
def chat(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    template = tmp_path / "chatml.jinja"
    template.write_text(CHATML)
    return Chat(load(model_dir, device="cpu", kv_cache="fp32"), template, monkeypatch)


def new_behind(chat: Chat, before: Sequence[Message], answer: Message, last: Sequence[Message]) -> int:
    """Tokens of a prompt behind what is cached: the prompt before it and all of its answer but the last token."""
    known = [*chat.ids(before), *answer.token_ids[:-1]]
    prompt = chat.ids(last)
    assert prompt[: len(known)] == known
    return len(prompt) - len(known)


def test_a_second_turn_reads_the_new_message_only(chat: Chat) -> None:
    ident = chat.new(SYSTEM)
    first = chat.answer(ident, "Tell me something.")
    assert chat.computed == chat.prompt
    assert chat.engine.encode(first.text) != list(first.token_ids)  # a random model does not speak canonically
    chat.answer(ident, "And now?")
    branch = chat.store.load(ident).branch
    assert chat.computed == new_behind(chat, branch[:2], first, branch[:4])
    assert chat.computed < 100


def test_another_answer_to_the_same_message_reads_nothing(chat: Chat) -> None:
    ident = chat.new(SYSTEM)
    first = chat.answer(ident, "Tell me something.")
    chat.answer(ident, retry_of=first.id, seed=2)
    assert chat.computed == 0


def test_the_other_branch_is_still_there(chat: Chat) -> None:
    ident = chat.new(SYSTEM)
    chat.answer(ident, "Tell me something.")
    tip = chat.store.load(ident).tip_id
    for text in ("First way", "Second way, which is longer"):
        chat.store.set_tip(ident, tip)
        chat.answer(ident, text)
    one = chat.answer(ident, "on the second way")
    chat.store.set_tip(ident, tip)
    # An edit of the third message: what stands before it is read from the cache.
    chat.answer(ident, "First way")
    branch = chat.store.load(ident).branch
    # Its logits are remembered as well: of the prompts that were read last nothing is computed again.
    assert chat.computed == 0
    assert one.text
    assert branch[-2].text == "First way"


def test_conversations_with_one_system_prompt_share_it(chat: Chat) -> None:
    one, other = chat.new(SYSTEM), chat.new(SYSTEM)
    chat.answer(one, "AAA")
    begun = chat.ids([message for message in chat.store.load(one).branch if message.role != "assistant"])
    chat.answer(other, "BBB")
    prompt = chat.ids([message for message in chat.store.load(other).branch if message.role != "assistant"])
    same = next(index for index, (a, b) in enumerate(zip(begun, prompt, strict=False)) if a != b)
    assert chat.computed == len(prompt) - same
    assert chat.computed < len(prompt) / 4


def test_another_persona_and_back(chat: Chat) -> None:
    ident = chat.new(SYSTEM)
    chat.answer(ident, "Tell me something.")
    first = chat.answer(ident, "More.")
    tip = chat.store.load(ident).tip_id
    chat.store.add_message(ident, "system", "You are a pirate.")
    cost = prompt_cost(chat.engine, chat.store.load(ident).branch, template=chat.template)
    assert cost.new_tokens > 100
    chat.answer(ident, "Ahoy")
    assert cost.new_tokens <= chat.computed <= cost.new_tokens + 40
    # Back to who was speaking before: the branch as it was, read from the cache.
    chat.store.set_tip(ident, tip)
    chat.answer(ident, "Back again")
    branch = chat.store.load(ident).branch
    assert chat.computed == new_behind(chat, branch[:4], first, branch[:6])


def test_a_template_that_drops_thinking_reads_from_there_on(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "thinking.jinja").write_text(THINKING)
    chat.template = str(tmp_path / "thinking.jinja")
    ident = chat.new(SYSTEM)
    chat.store.add_message(ident, "user", "Why?")
    asked = chat.store.load(ident).branch
    before = chat.ids(asked)
    # What a reasoning model would have said, token by token.
    said = chat.engine.encode("<think>Hmm, let me see, that is not easy to say.</think>Because.")
    list(chat.engine.generate(GenerationRequest([*before, *said], max_new_tokens=1)))
    first = chat.store.begin_answer(ident, asked[-1].id, record=None)
    chat.store.close_answer(first.id, chat.engine.decode(said), tuple(said), "complete", record=None)
    chat.answer(ident, "And then?")
    prompt = chat.ids(chat.store.load(ident).branch[:4])
    known = [*before, *said]
    same = next(index for index, (a, b) in enumerate(zip(known, prompt, strict=False)) if a != b)
    assert len(before) <= same < len(before) + 10
    assert chat.computed == len(prompt) - same


def test_a_restart_with_the_disk_reads_the_new_message_only(model_dir: Path, chat: Chat, tmp_path: Path) -> None:
    disk = {"page_folder": tmp_path / "cache", "page_bytes": 10**9}
    # Of conversations that are kept nowhere no page is kept either.
    chat.store = ConversationStore(tmp_path / "conversations.db")
    chat.engine = load(model_dir, device="cpu", kv_cache="fp32", **disk)  # type: ignore[arg-type]
    ident = chat.new(SYSTEM)
    first = chat.answer(ident, "Tell me something.")
    archive = chat.engine._parts.archive
    assert archive is not None
    archive.note_prefill(1000, 100.0)
    # What takes a busy machine longer than the two seconds of a close is lost, as it should be.
    assert archive.flush(PATIENCE)
    chat.engine.close()
    chat.engine = load(model_dir, device="cpu", kv_cache="fp32", **disk)  # type: ignore[arg-type]
    chat.answer(ident, "And now?")
    branch = chat.store.load(ident).branch
    assert chat.computed == new_behind(chat, branch[:2], first, branch[:4])


def test_system_prompts_of_recent_personas_are_kept_longest(model_dir: Path, chat: Chat) -> None:
    chat.engine = load(model_dir, device="cpu", kv_cache="fp32", max_seq_len=2048, cache_tokens=3072)
    persona = chat.new(SYSTEM * 2)
    chat.answer(persona, "Hello")
    for number in range(8):
        chat.answer(chat.new(), f"{number} " * 400)
    assert chat.engine.cache_report().evictions > 0
    chat.answer(chat.new(SYSTEM * 2), "Hello again")
    assert chat.computed < 100

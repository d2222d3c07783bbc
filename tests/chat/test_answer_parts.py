"""Thoughts and answer of a message, whoever wrote it and however it came here."""

from __future__ import annotations

import pytest

from exlchat.chat.exchange import html_page, markdown, openai
from exlchat.chat.model import AnswerRecord, ConversationTree, Message
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.thinking import HARMONY, THINK
from exlchat.llm.sampling import GREEDY
from exlchat.llm.thought_splitter import ThinkingMarks


def recorded(marks: ThinkingMarks | None) -> AnswerRecord:
    return AnswerRecord("m", "t", GREEDY, None, None, thinking=marks)


@pytest.mark.parametrize(
    ("message", "thinking", "answer"),
    [
        (Message("a", None, "assistant", "<think>Hm.</think>\nYes.", 0.0, record=recorded(THINK)), "Hm.", "Yes."),
        (Message("a", None, "assistant", "<think>Hm.</think>\nYes.", 0.0), "Hm.", "Yes."),
        (Message("a", None, "assistant", "<think>Hm.", 0.0), None, "<think>Hm."),
        (Message("a", None, "assistant", "<think>x</think>", 0.0, record=recorded(None)), None, "<think>x</think>"),
        (Message("a", None, "assistant", "As <think> says </think>", 0.0), None, "As <think> says </think>"),
        (Message("a", None, "user", "<think>Hm.</think>Yes.", 0.0), None, "<think>Hm.</think>Yes."),
        (Message("a", None, "assistant", "Yes.", 0.0, thinking="Hm."), "Hm.", "Yes."),
        (
            Message(
                "a",
                None,
                "assistant",
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
                0.0,
                record=recorded(HARMONY),
            ),
            "Hm.",
            "Yes.",
        ),
    ],
)
def test_thoughts_and_answer(message: Message, thinking: str | None, answer: str) -> None:
    parts = answer_parts(message)
    assert (parts.thinking, parts.answer) == (thinking, answer)


def test_exports_for_readers_fold_the_thoughts_and_openai_leaves_them_out() -> None:
    said = Message("a", None, "assistant", "<think>Hmmm.</think>\nYes.", 0.0, record=recorded(THINK))
    tree = ConversationTree("T", 0.0, 0.0, "a", (said,))
    for text in (markdown.page([tree]), html_page.page([tree])):
        assert "<think>" not in text
        assert "&lt;think" not in text
        assert text.index("Thinking</summary>") < text.index("Hmmm.") < text.index("Yes.")
    assert "Hmmm" not in openai.dumps([tree])
    assert '"Yes."' in openai.dumps([tree])

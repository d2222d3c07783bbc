"""Each kind of file, written here from its published description."""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.exchange.reading import detect
from exlchat.chat.prompt.note import Note, note_in
from tests.chat.exchange.trees import children, imported, is_whole, json_lines, said, with_text


def only(folder: Path, name: str, content: Any) -> Any:
    """The one conversation of a file in which nothing is wrong."""
    found = imported(folder, name, content)
    assert found.problems == ()
    (tree,) = found.trees
    assert is_whole(tree)
    return tree


# OpenAI

TALK = [
    {"role": "developer", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is on it?"}, {"type": "image_url", "image_url": {"url": "u"}}],
    },
    {
        "role": "assistant",
        "content": "An owl.",
        "reasoning_content": "Feathers.",
        "refusal": None,
        "annotations": ["x"],
    },
    {"role": "user", "content": "How many?", "name": "Ada"},
    {"role": "assistant", "content": "<think>\nOne, two.\n</think>\n\nTwo."},
]
TALKED = [
    ("system", "Be brief."),
    ("user", "What is on it?\n[image]"),
    ("assistant", "An owl."),
    ("user", "How many?"),
    ("assistant", "Two."),
]


@pytest.mark.parametrize(
    "content",
    [
        TALK,
        {"messages": TALK, "model": "gpt-4o"},
        [{"messages": TALK}],
        json_lines({"messages": TALK}),
        json_lines({"messages": TALK}) + "\n",
        json_lines(*TALK),
        json_lines(*TALK).replace("\n", "\r\n"),
    ],
)
def test_openai_messages_in_every_wrapping(tmp_path: Path, content: Any) -> None:
    tree = only(tmp_path, "a.json", content)
    assert detect(tmp_path / "a.json") == "openai"
    assert said(tree) == TALKED
    answers = [message for message in tree.messages if message.role == "assistant"]
    assert [message.thinking for message in answers] == ["Feathers.", "One, two."]
    assert answers[0].foreign["openai"] == {"annotations": ["x"]}
    assert with_text(tree, "How many?").foreign["name"] == "Ada"
    picture = with_text(tree, "What is on it?\n[image]")
    assert picture.foreign["openai"]["content"] == TALK[1]["content"]


def test_several_conversations_a_line_each(tmp_path: Path) -> None:
    found = imported(tmp_path, "a.jsonl", json_lines({"messages": TALK}, {"messages": TALK[3:], "model": "gpt-4o"}))
    assert [said(tree) for tree in found.trees] == [TALKED, TALKED[3:]]
    assert found.trees[1].messages[1].foreign["model"] == "gpt-4o"


def test_calls_of_tools_stay_with_the_answer_they_led_to(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "time"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "12:00"}
    tree = only(tmp_path, "a.json", [TALK[3], call, result, {"role": "assistant", "content": "Noon."}, TALK[3], call])
    assert said(tree) == [("user", "How many?"), ("assistant", "Noon."), ("user", "How many?"), ("assistant", "")]
    steps = [message.foreign.get("steps") for message in tree.messages]
    assert steps == [None, [call, result], None, [call]]


# ShareGPT


@pytest.mark.parametrize("by_line", [True, False])
def test_sharegpt(tmp_path: Path, by_line: bool) -> None:
    one = {
        "id": "identity_0",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello."},
            {"from": "human", "value": "Weather?"},
            {"from": "function_call", "value": "weather()"},
            {"from": "observation", "value": "rain"},
            {"from": "gpt", "value": "Rain.", "weight": 1},
        ],
        "tools": "[]",
    }
    two = {"system": "S", "conversations": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}
    found = imported(tmp_path, "a", json_lines(one, two) if by_line else [one, two])
    assert (found.kind, found.problems) == ("sharegpt", ())
    first, second = found.trees
    assert said(first) == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "Weather?"),
        ("assistant", "Rain."),
    ]
    assert [step["content"] for step in with_text(first, "Rain.").foreign["steps"]] == ["weather()", "rain"]
    assert with_text(first, "Rain.").foreign["openai"] == {"weight": 1}
    assert first.foreign == {"source": "sharegpt", "sharegpt": {"id": "identity_0", "tools": "[]"}}
    assert said(second) == [("system", "S"), ("user", "A"), ("assistant", "B")]


# ChatGPT


def node(ident: str, parent: str | None, role: str, *parts: Any, **message: Any) -> dict[str, Any]:
    content = message.pop("content", {"content_type": "text", "parts": list(parts)})
    body = {
        "id": ident,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": message.pop("at", None),
        "update_time": None,
        "content": content,
        "status": "finished_successfully",
        "end_turn": True,
        "weight": 1.0,
        "metadata": message.pop("metadata", {}),
        "recipient": "all",
        **message,
    }
    return {"id": ident, "message": body, "parent": parent, "children": []}


def chatgpt(**more: Any) -> dict[str, Any]:
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "Counting", "content": "One and one."}]}
    recap = {"content_type": "reasoning_recap", "content": "Thought for 3 seconds"}
    code = {"content_type": "code", "language": "python", "text": "1 + 1"}
    output = {"content_type": "execution_output", "text": "2"}
    custom = {"content_type": "user_editable_context", "user_profile": "I am Ada.", "user_instructions": "Be brief."}
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    nodes = [
        {"id": "client-created-root", "message": None, "parent": None, "children": ["sys"]},
        node("sys", "client-created-root", "system", ""),
        node("custom", "sys", "user", content=custom),
        node("q1", "custom", "user", "What is 1 + 1?", at=1700000001.5),
        node("a1", "q1", "assistant", "3", at=1700000002.5, metadata={"model_slug": "gpt-4"}),
        node("t", "q1", "assistant", content=thoughts, at=1700000003.5),
        node("r", "t", "assistant", content=recap),
        node("c", "r", "assistant", content=code, recipient="python"),
        node("o", "c", "tool", content=output),
        node("a2", "o", "assistant", "2", at=1700000009.5, metadata={"model_slug": "o3"}),
        node("q2", "a2", "user", content={"content_type": "multimodal_text", "parts": [picture, "And this?"]}),
    ]
    return {
        "title": "Sums",
        "create_time": 1700000000.25,
        "update_time": 1700000010.0,
        "mapping": {entry["id"]: entry for entry in nodes},
        "moderation_results": [],
        "current_node": "q2",
        "conversation_id": "abc",
        "is_archived": True,
        **more,
    }


def test_chatgpt_keeps_the_tree(tmp_path: Path) -> None:
    tree = only(tmp_path, "conversations.json", [chatgpt()])
    assert detect(tmp_path / "conversations.json") == "chatgpt"
    assert said(tree) == [
        ("system", "I am Ada.\n\nBe brief."),
        ("user", "What is 1 + 1?"),
        ("assistant", "2"),
        ("user", "[image]\nAnd this?"),
    ]
    assert children(tree, "What is 1 + 1?") == ["3", "2"]
    assert (tree.title, tree.created_at, tree.updated_at, tree.archived) == ("Sums", 1700000000.25, 1700000010.0, True)
    assert tree.foreign["chatgpt"] == {"conversation_id": "abc"}
    answer = with_text(tree, "2")
    assert (answer.id, answer.created_at, answer.foreign["model"]) == ("a2", 1700000009.5, "o3")
    assert answer.thinking == "Counting\nOne and one."
    assert [step["id"] for step in answer.foreign["steps"]] == ["t", "c", "o"]
    assert with_text(tree, "[image]\nAnd this?").foreign["chatgpt"]["content"]["parts"][1] == "And this?"


def test_an_end_that_is_no_talk_becomes_an_answer(tmp_path: Path) -> None:
    one = chatgpt(current_node="o")
    del one["mapping"]["a2"], one["mapping"]["q2"]
    tree = only(tmp_path, "a.json", [one])
    last = tree.messages[-1]
    assert (last.role, last.text, last.thinking) == ("assistant", "2", "Counting\nOne and one.")
    assert tree.tip_id == last.id == "o"


@pytest.mark.parametrize(
    "names", [["conversations.json"], ["export/conversations-000.json", "export/conversations-001.json"]]
)
def test_chatgpts_archive(tmp_path: Path, names: list[str]) -> None:
    import json

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chat.html", "<html>")
        for name in names:
            archive.writestr(name, json.dumps([chatgpt(title=name)]))
    found = imported(tmp_path, "export.zip", buffer.getvalue())
    assert (found.kind, [tree.title for tree in found.trees], found.problems) == ("chatgpt", names, ())


# Open WebUI


def open_webui() -> dict[str, Any]:
    def message(ident: str, parent: str | None, role: str, content: str, at: int, **more: Any) -> dict[str, Any]:
        fields = {"id": ident, "parentId": parent, "childrenIds": [], "role": role, "content": content, "timestamp": at}
        return {**fields, **more}

    thought = (
        '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds</summary>\n'
        "> They greet.\n> So do I.\n</details>\nHello!"
    )
    messages = [
        message("u1", None, "user", "Hi", 1700000001, models=["llama3:8b"]),
        message("a1", "u1", "assistant", "Hello.", 1700000002, model="llama3:8b", done=True),
        message("a2", "u1", "assistant", thought, 1700000003, model="qwen3:4b", done=True),
        message("u2", "a1", "user", "Bye", 1700000004),
    ]
    return {
        "id": "c1",
        "user_id": "me",
        "title": "Greetings",
        "chat": {
            "title": "Greetings",
            "models": ["llama3:8b"],
            "params": {"system": "Be kind."},
            "history": {"currentId": "a2", "messages": {entry["id"]: entry for entry in messages}},
            "messages": [messages[0], messages[2]],
            "tags": ["small"],
            "timestamp": 1700000000000,
        },
        "updated_at": 1700000005,
        "created_at": 1700000000,
        "archived": False,
        "pinned": True,
        "meta": {"tags": ["talk", "small"]},
    }


@pytest.mark.parametrize("wrap", [lambda chat: [chat], lambda chat: chat, lambda chat: chat["chat"]])
def test_open_webui_keeps_the_tree(tmp_path: Path, wrap: Any) -> None:
    tree = only(tmp_path, "chat-export.json", wrap(open_webui()))
    assert detect(tmp_path / "chat-export.json") == "open-webui"
    assert said(tree) == [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello!")]
    assert children(tree, "Hi") == ["Hello.", "Hello!"]
    assert children(tree, "Hello.") == ["Bye"]
    answer = with_text(tree, "Hello!")
    assert answer.thinking == "They greet.\nSo do I."
    assert (answer.foreign["model"], answer.created_at) == ("qwen3:4b", 1700000003.0)
    assert (tree.title, tree.created_at) == ("Greetings", 1700000000.0)


def test_open_webuis_tags_and_pin(tmp_path: Path) -> None:
    tree = only(tmp_path, "a.json", [open_webui()])
    assert (tree.tags, tree.pinned, tree.archived, tree.updated_at) == (("small", "talk"), True, False, 1700000005.0)


# SillyTavern


def test_sillytavern_keeps_the_swipes(tmp_path: Path) -> None:
    header = {
        "user_name": "Ada",
        "character_name": "Seraphina",
        "create_date": "2024-05-10 @14h 45m 12s 345ms",
        "chat_metadata": {"note_prompt": "", "integrity": "x"},
    }
    greeting = {"name": "Seraphina", "is_user": False, "is_system": False, "send_date": "May 10, 2024 2:45pm"}
    info = [
        {"send_date": "May 10, 2024 2:46pm", "extra": {"model": "a"}},
        {"extra": {"reasoning": "Hm.", "model": "b"}},
    ]
    content = json_lines(
        header,
        {**greeting, "mes": "*smiles* Hi.", "extra": {}},
        {"name": "Ada", "is_user": True, "send_date": 1715352360000, "mes": "Hello, who are you?", "extra": {}},
        {
            **greeting,
            "mes": "Sera.",
            "swipe_id": 1,
            "swipes": ["Guess!", "Sera.", "A friend."],
            "swipe_info": info,
            "extra": {"model": "b", "reasoning": "Hm.", "token_count": 3},
            "force_avatar": "x.png",
        },
        {"name": "Ada", "is_user": True, "mes": "Hi Sera.", "send_date": "2024-05-10T12:00:00.000Z"},
    )
    tree = only(tmp_path, "Seraphina - 2024-05-10.jsonl", content)
    assert detect(tmp_path / "Seraphina - 2024-05-10.jsonl") == "sillytavern"
    assert said(tree) == [
        ("assistant", "*smiles* Hi."),
        ("user", "Hello, who are you?"),
        ("assistant", "Sera."),
        ("user", "Hi Sera."),
    ]
    assert children(tree, "Hello, who are you?") == ["Guess!", "Sera.", "A friend."]
    shown = with_text(tree, "Sera.")
    assert (shown.thinking, shown.foreign["model"], shown.foreign["name"]) == ("Hm.", "b", "Seraphina")
    assert shown.foreign["sillytavern"] == {"force_avatar": "x.png", "extra": {"token_count": 3}}
    assert tree.title == "Seraphina"
    assert tree.created_at == datetime(2024, 5, 10, 14, 45, 12, 345000).timestamp()
    assert with_text(tree, "*smiles* Hi.").created_at == datetime(2024, 5, 10, 14, 45).timestamp()
    assert with_text(tree, "Hello, who are you?").created_at == 1715352360.0
    assert with_text(tree, "Guess!").created_at == datetime(2024, 5, 10, 14, 46).timestamp()
    assert tree.foreign["sillytavern"]["chat_metadata"]["integrity"] == "x"


@pytest.mark.parametrize(
    ("about", "wanted", "told"),
    [
        ({"note_prompt": "Rain.", "note_depth": 2, "note_position": 1, "note_interval": 1}, ("Rain.", 2), ()),
        ({"note_prompt": "Rain."}, ("Rain.", 4), ()),
        (
            {"note_prompt": "Rain.", "note_depth": 3, "note_position": 0},
            ("Rain.", 3),
            ("its author's note stands 3 messages before the end of every prompt here",),
        ),
        ({"note_prompt": "Rain.", "note_interval": 0}, None, ()),
        ({"note_prompt": " \n"}, None, ()),
        (
            {"note_prompt": "Rain.", "note_depth": "deep"},
            None,
            ("its author's note is too long, or its depth is no number of messages; it is kept and not followed",),
        ),
    ],
)
def test_sillytaverns_authors_note_is_the_conversations(
    tmp_path: Path, about: dict[str, Any], wanted: tuple[str, int] | None, told: tuple[str, ...]
) -> None:
    lines = json_lines(
        {"chat_metadata": about},
        {"name": "Sera", "is_user": False, "mes": "Hi.", "swipe_id": 1, "swipes": ["Ho.", "Hi."]},
        {"name": "Ada", "is_user": True, "mes": "Hello."},
    )
    found = imported(tmp_path, "a.jsonl", lines)
    (tree,) = found.trees
    notes = [note_in(with_text(tree, text).settings) for text in ("Ho.", "Hi.", "Hello.")]
    note = None if wanted is None else Note(*wanted)
    assert notes == [note, note, None]
    assert tuple(line.split(": ", 1)[-1] for line in found.problems) == told
    assert tree.foreign["sillytavern"]["chat_metadata"] == about


def test_sillytavern_says_what_it_cannot_keep(tmp_path: Path) -> None:
    hidden = {"name": "System", "is_user": False, "is_system": True, "mes": "Note."}
    narrated = {"name": "System", "is_user": False, "is_system": False, "mes": "Rain.", "extra": {"type": "narrator"}}
    edited = {"name": "B", "is_user": False, "mes": "Edited.", "swipe_id": 0, "swipes": ["Old.", "Other."]}
    found = imported(tmp_path, "a.jsonl", json_lines({"chat_metadata": {}}, hidden, narrated, edited, {"x": 1}))
    tree = found.trees[0]
    assert said(tree) == [("assistant", "Note."), ("system", "Rain."), ("assistant", "Edited.")]
    assert children(tree, "Rain.") == ["Old.", "Edited.", "Other."]
    assert [line.split(" ", 1)[1] for line in found.problems] == [
        "messages that SillyTavern hides from the model are ordinary messages here",
        "messages are none of their swipes; what is shown became one more",
        "lines that are no messages were left out",
    ]


def test_chubs_variant(tmp_path: Path) -> None:
    swipes = [{"message": "A"}, {"message": "B"}]
    line = {"name": "B", "is_user": False, "mes": {"message": "B"}, "swipes": swipes, "swipe_id": 1}
    tree = only(tmp_path, "a.jsonl", json_lines({"user_name": "u", "character_name": "c"}, line))
    assert children(tree, None) == ["A", "B"]
    assert said(tree) == [("assistant", "B")]


# text-generation-webui


def test_text_generation_webui_keeps_the_versions(tmp_path: Path) -> None:
    history = {
        "internal": [
            ["<|BEGIN-VISIBLE-CHAT|>", "How can I help?"],
            ["1 < 2?", "<think>Sure.</think>Yes."],
            ["Why?", "So."],
        ],
        "visible": [["", "How can I help?"], ["1 &lt; 2?", "Yes."], ["Why?", "So."]],
        "metadata": {
            "user_1": {"timestamp": "Jul 04, 2025 14:38", "attachments": [{"name": "a.txt"}]},
            "assistant_1": {
                "timestamp": "Jul 04, 2025 14:40",
                "model_name": "qwen3",
                "versions": [
                    {"content": "No.", "visible_content": "No.", "timestamp": "Jul 04, 2025 14:39"},
                    {
                        "content": "<think>Sure.</think>Yes.",
                        "visible_content": "Yes.",
                        "timestamp": "Jul 04, 2025 14:40",
                    },
                ],
                "current_version_index": 1,
            },
        },
    }
    tree = only(tmp_path, "20250704-14-38-00.json", history)
    assert detect(tmp_path / "20250704-14-38-00.json") == "textgen"
    assert said(tree) == [
        ("assistant", "How can I help?"),
        ("user", "1 < 2?"),
        ("assistant", "Yes."),
        ("user", "Why?"),
        ("assistant", "So."),
    ]
    assert children(tree, "1 < 2?") == ["No.", "Yes."]
    yes = with_text(tree, "Yes.")
    assert (yes.thinking, yes.foreign["model"]) == ("Sure.", "qwen3")
    assert yes.created_at == datetime(2025, 7, 4, 14, 40).timestamp()
    assert with_text(tree, "No.").created_at == datetime(2025, 7, 4, 14, 39).timestamp()
    assert with_text(tree, "1 < 2?").foreign["textgen"]["attachments"] == [{"name": "a.txt"}]


@pytest.mark.parametrize(
    "content",
    [
        {"data": [["a <b>", "c"]], "data_visible": [["a &lt;b&gt;", "c"]]},
        {"visible": [["a &lt;b&gt;", "c"]]},
    ],
)
def test_older_histories(tmp_path: Path, content: Any) -> None:
    assert said(only(tmp_path, "a.json", content)) == [("user", "a <b>"), ("assistant", "c")]


# exllamav3, exui, aichat


def test_exllamav3(tmp_path: Path) -> None:
    content = {"system_prompt": "Be brief.", "banned_strings": ["!"], "context": [["Hi", "Hello."], ["Bye", None]]}
    tree = only(tmp_path, "a.json", content)
    assert detect(tmp_path / "a.json") == "exllamav3"
    assert said(tree) == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    assert tree.foreign["exllamav3"] == {"banned_strings": ["!"]}


def test_exui(tmp_path: Path) -> None:
    content = {
        "session_uuid": "s",
        "name": "Story",
        "history": [
            {"block_uuid": "1", "author": "user", "text": "Ada: Hi"},
            {"block_uuid": "2", "author": "assistant", "text": "Bob: Hello: you", "meta": {"overflow": 0}},
        ],
        "settings": {"prompt_format": "Chat-RP", "roles": ["Ada", "Bob", "", ""], "system_prompt": "A play."},
    }
    tree = only(tmp_path, "session_s.json", content)
    assert detect(tmp_path / "session_s.json") == "exui"
    assert said(tree) == [("system", "A play."), ("user", "Hi"), ("assistant", "Hello: you")]
    assert [message.foreign.get("name") for message in tree.messages] == [None, "Ada", "Bob"]
    content["settings"]["prompt_format"] = "ChatML"  # type: ignore[index]
    assert said(only(tmp_path, "session_s.json", content))[1] == ("user", "Ada: Hi")


AICHAT = """\
model: ollama:llama3
temperature: 0.7
save_session: true
compressed_messages:
- role: user
  content: First.
messages:
- role: system
  content: 'Summary: first.'
- role: user
  content:
  - type: text
    text: 2024-01-01
  - type: image_url
    image_url:
      url: x
- role: assistant
  content: |-
    yes: "no"
    2nd line
- role: assistant
  content: yes
data_urls: {}
"""


def test_aichat(tmp_path: Path) -> None:
    tree = only(tmp_path, "temp.yaml", AICHAT)
    assert detect(tmp_path / "temp.yaml") == "aichat"
    assert said(tree) == [
        ("user", "First."),
        ("system", "Summary: first."),
        ("user", "2024-01-01\n[image]"),
        ("assistant", 'yes: "no"\n2nd line'),
        ("assistant", "yes"),
    ]
    assert tree.messages[-1].foreign["model"] == "ollama:llama3"
    assert tree.foreign["aichat"] == {"model": "ollama:llama3", "temperature": 0.7, "save_session": True}

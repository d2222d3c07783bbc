"""What keys do in one place only: on a message, in the sidebar."""

from __future__ import annotations

from exlchat.app.commands.action import Action

PLACE_ACTIONS: tuple[Action, ...] = (
    Action("message-up", "Message above", "Go to the message above.", ("up", "k"), place="message", in_palette=False),
    Action(
        "message-down", "Message below", "Go to the message below.", ("down", "j"), place="message", in_palette=False
    ),
    Action(
        "message-ends",
        "First and last message",
        "Go to the first or the last message.",
        ("home", "end"),
        place="message",
        in_palette=False,
    ),
    Action("copy-message", "Copy", "Copy the message to the clipboard.", ("c", "y"), place="message", in_palette=False),
    Action(
        "answer-again",
        "Answer again",
        "Have the message answered again, or the answer given again beside itself.",
        ("r",),
        place="message",
        in_palette=False,
    ),
    Action(
        "alternative-before",
        "Alternative before",
        "Show the alternative that was written before.",
        ("left", "h"),
        place="message",
        in_palette=False,
    ),
    Action(
        "alternative-after",
        "Alternative after",
        "Show the alternative that was written after.",
        ("right", "l"),
        place="message",
        in_palette=False,
    ),
    Action(
        "pin-message",
        "Pin or unpin",
        "Have the model go on seeing the message when the oldest are left out, or no longer.",
        ("p",),
        place="message",
        in_palette=False,
    ),
    Action(
        "fold",
        "Fold or unfold",
        "Fold the message to one line, or unfold it.",
        ("space",),
        place="message",
        in_palette=False,
    ),
    Action(
        "fold-above",
        "Fold what is above",
        "Fold all messages above to one line each, or unfold them.",
        ("Z",),
        place="message",
        in_palette=False,
    ),
    Action(
        "continue-message",
        "Go on",
        "Have the model go on with the last answer, if it was cut or changed.",
        ("n",),
        place="message",
        in_palette=False,
    ),
    Action(
        "source",
        "Source",
        "Show a message as it was written, or again as it is meant: the last one, or the Nth from the end.",
        ("o",),
        "/source",
        "[N]",
        place="message",
        available=lambda now: now.has_messages,
        in_palette=False,
    ),
    Action(
        "save-code",
        "Save the code",
        "Save the code blocks of a message to FILE: of the last one that has any, or of the Nth from the end.",
        ("s",),
        "/code",
        "[N] [FILE]",
        place="message",
        available=lambda now: now.has_messages,
    ),
    Action(
        "open-link",
        "Open a link",
        "Open or copy a link of the message; where it leads is shown before.",
        ("w",),
        place="message",
        in_palette=False,
    ),
    Action(
        "fold-code",
        "Fold or unfold code",
        "Fold the long code blocks of the message to their first lines, or unfold them.",
        ("z",),
        place="message",
        in_palette=False,
    ),
    Action(
        "leave-messages", "Back", "Go back to the message you write.", ("escape",), place="message", in_palette=False
    ),
    Action("open-selected", "Open", "Open the conversation.", ("enter",), place="sidebar", in_palette=False),
    Action("rename-selected", "Rename", "Rename the conversation.", ("r",), place="sidebar", in_palette=False),
    Action("delete-selected", "Delete", "Delete the conversation.", ("d", "delete"), place="sidebar", in_palette=False),
    Action(
        "undo-delete",
        "Undo",
        "Bring back the conversation that was deleted last.",
        ("u",),
        place="sidebar",
        in_palette=False,
    ),
    Action("leave-sidebar", "Back", "Go back to the message.", ("escape",), place="sidebar", in_palette=False),
)

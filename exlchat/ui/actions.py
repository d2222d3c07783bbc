"""Everything a person can do, in one registry: keys, slash commands and palette entries are doors to the same action.

The help screen is generated from it, and the guide's answers are checked against it. No terminal library here.
"""

from __future__ import annotations

from exlchat.ui.action import Action, Place, Situation

__all__ = ["ACTIONS", "BY_ID", "BY_SLASH", "Action", "Place", "Situation", "completions"]

ACTIONS: tuple[Action, ...] = (
    Action("send", "Send", "Send the message.", ("enter",), place="composer", in_palette=False),
    Action(
        "new-line",
        "New line",
        "Start a new line in the message; a backslash at the end of the line and then Enter does the same.",
        ("shift+enter", "alt+enter", "ctrl+j"),
        place="composer",
        in_palette=False,
    ),
    Action(
        "earlier-prompt",
        "Earlier prompts",
        "Bring back what you asked before in this conversation, from the first or last line of the message.",
        ("up", "down"),
        place="composer",
        in_palette=False,
    ),
    Action(
        "stop",
        "Stop the answer",
        "Stop the answer and keep its text.",
        ("escape",),
        available=lambda now: now.answering,
    ),
    Action("new", "New conversation", "Start a new conversation.", ("ctrl+n",), "/new"),
    Action(
        "sidebar",
        "Conversations",
        "Show or hide the sidebar with the conversations.",
        ("ctrl+b",),
        "/sidebar",
    ),
    Action(
        "open",
        "Open a conversation",
        "Open the Nth conversation of the list, the newest being 1; without N, go to the list.",
        (),
        "/open",
        "[N]",
    ),
    Action(
        "retry",
        "Retry the last answer",
        "Have the last message answered again; the old answer is kept.",
        ("ctrl+r",),
        "/retry",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "continue",
        "Continue a cut answer",
        "Go on with an answer that was cut.",
        (),
        "/continue",
        available=lambda now: now.answer_was_cut and not now.answering,
    ),
    Action(
        "pin",
        "Pin a message",
        "Have the model go on seeing the last message, or the Nth from the end, when the oldest are left out.",
        (),
        "/pin",
        "[N]",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "unpin",
        "Unpin a message",
        "Take the pin from the last message, or from the Nth from the end.",
        (),
        "/unpin",
        "[N]",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "summary",
        "Summary of the earlier conversation",
        "Show the summary that the model sees in the place of the oldest messages.",
        (),
        "/summary",
        available=lambda now: now.has_answer,
    ),
    Action(
        "copy",
        "Copy the last answer",
        "Copy the last answer to the clipboard.",
        ("ctrl+y",),
        "/copy",
        available=lambda now: now.has_answer,
    ),
    Action(
        "messages",
        "Go to the messages",
        "Go to the messages, to copy, edit or branch off from one; escape comes back.",
        ("ctrl+up",),
        "/messages",
        available=lambda now: now.has_messages,
    ),
    Action(
        "find",
        "Find in this conversation",
        "Find a text in this conversation; Enter and the arrow keys go from place to place.",
        ("ctrl+f",),
        "/find",
        "[TEXT]",
        available=lambda now: now.has_messages,
    ),
    Action(
        "compare",
        "Compare answers",
        "Have N answers to the last message, else two, side by side, and keep one; the others are its alternatives.",
        (),
        "/compare",
        "[N]",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "tree",
        "Branches",
        "Show all branches of this conversation, and go to one.",
        ("t",),
        "/tree",
        place="message",
        available=lambda now: now.has_messages,
    ),
    Action(
        "search",
        "Search everything",
        "Search all conversations, and go to the message that was found.",
        ("f3",),
        "/search",
        "[TEXT]",
    ),
    Action(
        "edit",
        "Edit a message",
        "Change a message of yours, which is answered anew, or of the model; with N the Nth from the end.",
        ("e",),
        "/edit",
        "[N]",
        place="message",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "alternative",
        "Show an alternative",
        "Show alternative number N of the last message that has any.",
        (),
        "/alternative",
        "N",
        available=lambda now: now.has_messages and not now.answering,
        in_palette=False,
    ),
    Action(
        "branch",
        "Branch off",
        "Open a new conversation with copies of the messages up to this one, or to the Nth from the end.",
        ("b",),
        "/branch",
        "[N]",
        place="message",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "cut",
        "Delete from here",
        "Delete a message and what follows it: the last one, or from the Nth from the end on; /undo brings it back.",
        ("d", "delete"),
        "/cut",
        "[N]",
        place="message",
        available=lambda now: now.can_retry and not now.answering,
    ),
    Action(
        "rename",
        "Rename this conversation",
        "Give this conversation a title.",
        (),
        "/rename",
        "TITLE",
        available=lambda now: now.has_messages,
    ),
    Action(
        "delete",
        "Delete this conversation",
        "Delete this conversation; /undo brings it back.",
        (),
        "/delete",
        available=lambda now: now.has_messages,
    ),
    Action(
        "undo",
        "Undo",
        "Take back what was done last: an edit, a jump, a pin, a deleted message or conversation.",
        ("u",),
        "/undo",
        place="message",
        available=lambda now: (now.has_messages or now.can_undo_delete) and not now.answering,
    ),
    Action(
        "redo",
        "Redo",
        "Do again what was undone last in this conversation.",
        ("U",),
        "/redo",
        place="message",
        available=lambda now: now.has_messages and not now.answering,
    ),
    Action(
        "system",
        "System prompt",
        "Say who is speaking: set the system prompt of this conversation; without TEXT, show it.",
        (),
        "/system",
        "[TEXT]",
    ),
    Action(
        "persona",
        "Persona",
        "Have a persona speak from here on; without NAME, say who speaks and who there is.",
        (),
        "/persona",
        "[NAME]",
    ),
    Action(
        "preset",
        "Sampling preset",
        "Draw answers by a sampling preset from here on; without NAME, list them and show what holds.",
        (),
        "/preset",
        "[NAME]",
    ),
    Action(
        "template",
        "Prompt template",
        "Choose the prompt template: model, chatml, plain, or a file in the templates folder.",
        (),
        "/template",
        "[NAME]",
    ),
    Action(
        "theme",
        "Theme",
        "Choose the colours, of those that exlchat themes shows or of your own.",
        (),
        "/theme",
        "[NAME]",
    ),
    Action(
        "set",
        "Answer settings",
        "Change temperature, top_k, top_p, min_p, seed, max_tokens or context_policy until you quit; alone, show all.",
        (),
        "/set",
        "[NAME VALUE]",
    ),
    Action(
        "model",
        "About the model",
        "Show what model is loaded and how; with the NAME or folder of another, load that. /model set NAME VALUE "
        "remembers context, kv_cache, template or system for this model.",
        (),
        "/model",
        "[NAME]",
    ),
    Action("models", "Models", "Show the models there are, whether they fit, and load one.", (), "/models"),
    Action(
        "stats",
        "Statistics",
        "Show the figures of the last answer.",
        (),
        "/stats",
        available=lambda now: now.has_answer,
    ),
    Action("cache", "Cache", "Show what the model's cache holds, whose it is, and how much it saves.", (), "/cache"),
    Action(
        "cost",
        "Cost of reading again",
        "Say how many tokens would be read anew for the next answer; with TEXT, if TEXT were the system prompt.",
        (),
        "/cost",
        "[TEXT]",
        available=lambda now: now.has_messages,
    ),
    Action(
        "prompt",
        "Prompt inspector",
        "Show the exact prompt: every token, coloured by message, what the cache holds shaded.",
        ("f4",),
        "/prompt",
        available=lambda now: now.has_messages,
    ),
    Action(
        "palette",
        "Command palette",
        "Find a command, a theme or a conversation by name.",
        ("ctrl+p",),
        in_palette=False,
    ),
    Action("settings", "Settings", "See all settings and change them.", ("f2",), "/settings"),
    Action("help", "Help", "Show keys and commands.", ("f1",), "/help"),
    Action(
        "scroll-page",
        "Scroll",
        "Scroll the conversation by a page.",
        ("pageup", "pagedown"),
        in_palette=False,
    ),
    Action(
        "scroll-ends",
        "First and last line",
        "Go to the first or the last line of the conversation.",
        ("ctrl+home", "ctrl+end"),
        in_palette=False,
    ),
    Action(
        "copy-or-stop",
        "Copy, stop or quit",
        "Copy the selected text; without a selection stop the answer; twice in a row quits.",
        ("ctrl+c",),
        in_palette=False,
    ),
    Action("quit", "Quit", "Quit; an answer being written is kept as far as it has come.", ("ctrl+q",), "/quit"),
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
        "source",
        "Source",
        "Show the message as it was written, or again as it is meant.",
        ("o",),
        place="message",
        in_palette=False,
    ),
    Action(
        "save-code",
        "Save the code",
        "Save the code blocks of the message to files.",
        ("s",),
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

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}
BY_SLASH: dict[str, Action] = {action.slash: action for action in ACTIONS if action.slash}


def completions(text: str, now: Situation | None = None) -> list[Action]:
    """Actions whose slash command is meant by `text`, for as long as only a command has been typed.

    First those that begin with it, then those that have its letters in this order; of the latter only where there are
    two letters and more.

    Args:
        text: as typed.
        now: leaves out what cannot be done now; `None` leaves out nothing.
    """
    if not text.startswith("/") or text.startswith("//") or any(mark.isspace() for mark in text):
        return []
    typed = text[1:].lower()
    possible = [action for _, action in sorted(BY_SLASH.items()) if now is None or action.available(now)]
    begun = [action for action in possible if action.usage[1:].startswith(typed)]
    meant = [action for action in possible if len(typed) > 1 and _has_letters((action.slash or "")[1:], typed)]
    return [*begun, *(action for action in meant if action not in begun)]


def _has_letters(word: str, letters: str) -> bool:
    """Whether a word has these letters in this order."""
    rest = iter(word)
    return all(letter in rest for letter in letters)

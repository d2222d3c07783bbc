"""What the keys do. Everything that is not here is prompt_toolkit's emacs editing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Always, Condition, emacs_mode, has_focus, vi_navigation_mode
from prompt_toolkit.key_binding import DynamicKeyBindings, KeyBindings, merge_key_bindings
from prompt_toolkit.key_binding.bindings.auto_suggest import load_auto_suggest_bindings
from prompt_toolkit.keys import Keys

from exlchat.app.commands.actions import BY_NAME, completions, situation_of
from exlchat.ui.line.input_text import fence_is_open
from exlchat.ui.line.own_keys import line_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.key_binding import KeyBindingsBase, KeyPressEvent

    from exlchat.app.commands.action import Action
    from exlchat.app.keys.keymap import Keymap
    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.own_keys import LineKey

_ANYWHERE = ("copy-or-stop", "quit", "help")
"""Actions whose keys work while something is searched, too."""


@dataclass(frozen=True, slots=True)
class TypedLine:
    buffer: Buffer
    set_text: Callable[[str], None]
    submit: Callable[[], None]
    paste: Callable[[str], None]
    edit: Callable[[], Coroutine[None, None, None]]
    suspend: Callable[[], None]
    clear: Callable[[], bool]


def line_bindings(line: TypedLine, chat: LineChat) -> KeyBindingsBase:
    """The keys of the message, over those of prompt_toolkit."""
    chosen = _Chosen(line, chat)
    return merge_key_bindings(
        [load_auto_suggest_bindings(), _typing(line), _acting(line, chat), DynamicKeyBindings(chosen.bindings)]
    )


def _typing(line: TypedLine) -> KeyBindings:
    keys = KeyBindings()
    in_message = has_focus("message")

    @keys.add("enter", filter=in_message)
    def _new_line(_: KeyPressEvent) -> None:
        # Where another key sends; the one that does is bound over this one.
        line.buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste, filter=in_message)
    def _paste(event: KeyPressEvent) -> None:
        line.paste(event.data)

    @keys.add("c-x", "c-e", filter=in_message)
    def _edit(event: KeyPressEvent) -> None:
        event.app.create_background_task(line.edit())

    return keys


def _acting(line: TypedLine, chat: LineChat) -> KeyBindings:
    keys = KeyBindings()
    in_message = has_focus("message")
    empty = Condition(lambda: not line.buffer.text)
    editing = Condition(lambda: chat.editing.active) & (emacs_mode | vi_navigation_mode)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _ctrl_c(_: KeyPressEvent) -> None:
        _stop_or_quit(line, chat)

    @keys.add("escape", filter=in_message & editing & (emacs_mode | vi_navigation_mode))
    def _leave(_: KeyPressEvent) -> None:
        chat.commands.run("stop")

    @keys.add("c-d", filter=in_message & empty)
    def _quit(_: KeyPressEvent) -> None:
        chat.commands.run("quit")

    @keys.add("c-z")
    def _suspend(_: KeyPressEvent) -> None:
        line.suspend()

    return keys


class _Chosen:
    """The keys of the registry and of the user's own, made again when other ones hold."""

    def __init__(self, line: TypedLine, chat: LineChat) -> None:
        self._line = line
        self._chat = chat
        self._made: tuple[Keymap, KeyBindings] | None = None

    def bindings(self) -> KeyBindings:
        if self._made is None or self._made[0] is not self._chat.keys:
            self._made = (self._chat.keys, self._make())
        return self._made[1]

    def _make(self) -> KeyBindings:
        keys = KeyBindings()
        in_message = has_focus("message")
        answering = Condition(lambda: situation_of(self._chat.session).answering)
        # In vi's insert mode Escape leaves that first.
        filters = {
            "stop": in_message & answering & (emacs_mode | vi_navigation_mode),
            **dict.fromkeys(_ANYWHERE, Always()),
        }
        seen: Counter[str] = Counter()
        for one in line_keys(self._chat.keys, self._chat.commands.known):
            seen[one.action.id] += 1
            if one.sequence is not None and (does := self._doing(one, seen[one.action.id])) is not None:
                # Where vi's keys hold, escape leaves the insert mode first.
                free = emacs_mode | vi_navigation_mode if one.name == "escape" else Always()
                keys.add(*one.sequence, filter=filters.get(one.action.id, in_message) & free)(does)
        return keys

    def _doing(self, key: LineKey, number: int) -> Callable[[KeyPressEvent], None] | None:
        """What the key does, the `number`th of its action; `None` where prompt_toolkit does it by itself."""
        line, action = self._line, key.action
        match action.id:
            case "send":
                return lambda _: _press_enter(line, self._chat)
            case "new-line":
                return lambda _: line.buffer.insert_text("\n")
            case "earlier-prompt" if action.id not in self._chat.keys.own:
                return None
            case "earlier-prompt":
                return (lambda _: line.buffer.auto_up()) if number == 1 else (lambda _: line.buffer.auto_down())
            case "find" | "search":
                return lambda _: _begin_command(line, self._chat, action)
        return lambda _: self._act(action.id)

    def _act(self, action_id: str) -> None:
        if action_id == "copy-or-stop":
            _stop_or_quit(self._line, self._chat)
        else:
            self._chat.commands.run(action_id)


def _stop_or_quit(line: TypedLine, chat: LineChat) -> None:
    """As in a shell, what is typed goes first; but an answer on its way, or a message being changed, before that."""
    busy = chat.editing.active or situation_of(chat.session).answering
    if busy or not line.clear():
        chat.commands.run("copy-or-stop")


def _begin_command(line: TypedLine, chat: LineChat, action: Action) -> None:
    """Put a command that needs a text into the line; where something is typed there, say what it needs."""
    if line.buffer.text:
        chat.commands.run(action.id)
    else:
        line.set_text(f"{action.slash} ")


def _press_enter(line: TypedLine, chat: LineChat) -> None:
    """Send; but complete the beginning of a command, and go on with a line that says so."""
    buffer = line.buffer
    text = buffer.text
    if not chat.editing.active and text.lower() not in BY_NAME and (offered := completions(text)):
        state = buffer.complete_state
        chosen = state.current_completion if state is not None else None
        line.set_text(chosen.text if chosen is not None else f"{offered[0].usage.partition(' ')[0]} ")
        return
    if buffer.document.is_cursor_at_the_end_of_line and buffer.document.char_before_cursor == "\\":
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    elif fence_is_open(text) and not chat.editing.active:
        buffer.insert_text("\n")
    else:
        line.submit()

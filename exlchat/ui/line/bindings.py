"""What the keys do. Everything that is not here is prompt_toolkit's emacs editing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, emacs_mode, has_focus, vi_navigation_mode
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings
from prompt_toolkit.key_binding.bindings.auto_suggest import load_auto_suggest_bindings
from prompt_toolkit.keys import Keys

from exlchat.ui.actions import BY_SLASH, completions
from exlchat.ui.chat_commands import situation_of
from exlchat.ui.line.input_text import fence_is_open

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindingsBase, KeyPressEvent

    from exlchat.ui.line.chat import LineChat
    from exlchat.ui.line.screen import LineScreen


def line_bindings(screen: LineScreen, chat: LineChat) -> KeyBindingsBase:
    """The keys of the message, over those of prompt_toolkit."""
    return merge_key_bindings([load_auto_suggest_bindings(), _typing(screen), _acting(screen, chat)])


def _typing(screen: LineScreen) -> KeyBindings:
    keys = KeyBindings()
    in_message = has_focus("message")

    @keys.add("enter", filter=in_message)
    def _enter(_: KeyPressEvent) -> None:
        _press_enter(screen)

    @keys.add("escape", "enter", filter=in_message)
    @keys.add("c-j", filter=in_message)
    def _new_line(_: KeyPressEvent) -> None:
        screen.buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste, filter=in_message)
    def _paste(event: KeyPressEvent) -> None:
        screen.paste(event.data)

    @keys.add("c-o", filter=in_message)
    @keys.add("c-x", "c-e", filter=in_message)
    def _edit(event: KeyPressEvent) -> None:
        event.app.create_background_task(screen.edit())

    return keys


def _acting(screen: LineScreen, chat: LineChat) -> KeyBindings:
    keys = KeyBindings()
    in_message = has_focus("message")
    empty = Condition(lambda: not screen.buffer.text)
    answering = Condition(lambda: situation_of(chat.session).answering)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _stop_or_quit(_: KeyPressEvent) -> None:
        chat.commands.run("copy-or-stop")

    @keys.add("escape", filter=in_message & answering & (emacs_mode | vi_navigation_mode))
    def _stop(_: KeyPressEvent) -> None:
        chat.commands.run("stop")

    @keys.add("c-d", filter=in_message & empty)
    @keys.add("c-q")
    def _quit(_: KeyPressEvent) -> None:
        chat.commands.run("quit")

    @keys.add("c-z")
    def _suspend(_: KeyPressEvent) -> None:
        screen.suspend()

    @keys.add("f1")
    def _help(_: KeyPressEvent) -> None:
        chat.commands.run("help")

    return keys


def _press_enter(screen: LineScreen) -> None:
    """Send; but complete the beginning of a command, and go on with a line that says so."""
    buffer = screen.buffer
    text = buffer.text
    if text.lower() not in BY_SLASH and (offered := completions(text)):
        state = buffer.complete_state
        chosen = state.current_completion if state is not None else None
        screen.set_text(chosen.text if chosen is not None else f"{offered[0].usage.partition(' ')[0]} ")
        return
    if buffer.document.is_cursor_at_the_end_of_line and buffer.document.char_before_cursor == "\\":
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    elif fence_is_open(text):
        buffer.insert_text("\n")
    else:
        screen.submit()

"""What can be chosen from a list: a branch, something that was found, a persona, a prompt format, a sampling preset."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.app.commands import sampling, speaking
from exlchat.app.commands.action import attempt
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.ui.tui.screens.pick import PickScreen, Row, narrowed
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.chat.store.search import SearchHit
    from exlchat.ui.tui.chat_view import ChatView

_HITS = 60
_TYPED = 500
_SHOWN_SEED = 0
_CHOOSES = "Enter chooses · Esc leaves"


class Pickers:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen

    def _ask(self, picker: PickScreen, then: Callable[[str], None]) -> None:
        def chosen(ident: str | None) -> None:
            if ident is not None:
                attempt(self._screen, lambda: then(ident))

        self._screen.app.push_screen(picker, chosen)

    # Conversations

    def tree(self, number: str) -> None:
        """All branches of the open conversation; the chosen message is shown, with the newest branch below it.

        With a number it is the one of that place in the list.
        """
        screen = self._screen

        def show(message_id: str) -> None:
            tree_actions.show(screen.session, message_id)
            screen.show_messages(at=message_id)
            screen.transcript.focus()

        if number:
            show(tree_actions.numbered_in_tree(screen.session, number))
            return
        messages = screen.session.store.read_tree(screen.session.require_open()).messages
        shown = {one.id for one in screen.session.branch}
        tip = screen.session.branch[-1].id if screen.session.branch else ""
        by_id = {one.id: one for one in messages}
        rows = [
            Row(
                line.message.id,
                f"{'  ' * line.depth}{'│' if line.message.id in shown else ' '} {line.message.role}: {line.text}",
                _when(line.message.created_at),
                line.message.id == tip,
            )
            for line in tree_lines(messages)
        ]

        def preview(message_id: str) -> str:
            return answer_parts(by_id[message_id]).answer

        self._ask(PickScreen("Branches", narrowed(rows), hint="Enter shows · Esc leaves", preview=preview), show)

    def search(self, typed: str) -> None:
        """Everything that was ever said; the chosen message is shown in its conversation."""
        screen = self._screen
        store = screen.session.store

        def rows(text: str) -> Sequence[Row]:
            return [_found(hit) for hit in store.search(text, _HITS)]

        def show(ident: str) -> None:
            conversation_id, _, message_id = ident.partition(" ")
            if not screen.open_conversation(conversation_id) or not message_id:
                return
            tree_actions.show(screen.session, message_id)
            screen.show_messages(at=message_id)
            screen.transcript.focus()

        def preview(ident: str) -> str:
            message_id = ident.partition(" ")[2]
            return answer_parts(store.message(message_id)).answer if message_id else ""

        picker = PickScreen(
            "Search",
            rows,
            hint="Enter opens · Esc leaves",
            placeholder="Words, or how they begin",
            preview=preview,
            typed=typed,
        )
        self._ask(picker, show)

    def history(self, typed: str) -> None:
        """What was typed before, the newest first; the chosen text takes the place of what is being typed."""
        composer = self._screen.composer
        texts = self._screen.services.typed.texts()[::-1]
        if not texts:
            raise NotPossibleError("nothing was typed yet that could be brought back")
        having = narrowed([Row(str(number), text) for number, text in enumerate(texts)])
        picker = PickScreen(
            "What you typed",
            lambda wanted: having(wanted)[:_TYPED],
            hint="Enter takes · Esc leaves",
            placeholder="A part of it",
            preview=lambda ident: texts[int(ident)],
            typed="" if "\n" in typed else typed,
        )
        self._ask(picker, lambda ident: composer.take(texts[int(ident)]))

    # How it speaks

    def persona(self) -> None:
        from exlchat.chat.personas.frozen import freeze
        from exlchat.chat.personas.registry import PERSONAS

        screen = self._screen
        listed = PERSONAS.all()
        by_id = {one.id: one.persona for one in listed.entries}
        now = screen.session.persona
        rows = [
            Row(
                one.id,
                one_line(one.persona.name, 40),
                one_line(one.persona.description or one.persona.system, 80),
                now is not None and now.name == one.persona.name,
            )
            for one in listed.entries
        ]
        user = screen.shelf.settings.user_name

        def preview(ident: str) -> str:
            frozen = freeze(by_id[ident], user=user, now=datetime.now(), seed=_SHOWN_SEED)
            greeting = f"\n\n“{frozen.greetings[0]}”" if frozen.greetings else ""
            return f"{frozen.system_text}{greeting}"

        for problem in listed.problems:
            screen.tell(problem, warning=True)
        self._ask(
            PickScreen("Personas", narrowed(rows), hint=_CHOOSES, preview=preview), partial(speaking.persona, screen)
        )

    def preset(self) -> None:
        from exlchat.chat.presets.registry import PRESETS

        screen = self._screen
        listed = PRESETS.all()
        by_id = {one.id: one.preset for one in listed.entries}
        rows = [Row(one.id, one.id, one_line(one.preset.description, 80)) for one in listed.entries]

        def preview(ident: str) -> str:
            return by_id[ident].overrides.describe() or "Nothing is changed by it"

        for problem in listed.problems:
            screen.tell(problem, warning=True)
        self._ask(
            PickScreen("Sampling presets", narrowed(rows), hint=_CHOOSES, preview=preview),
            partial(sampling.preset, screen),
        )

    def template(self) -> None:
        from exlchat.app.panels.template_sample import formats_there_are, sample_prompt

        screen = self._screen
        now = screen.session.template or "model"
        info = screen.model.info
        rows = [Row(name, name, about, name == now) for name, about in formats_there_are()]

        def preview(name: str) -> str:
            if info is None:
                return "No model is loaded; the prompt is shown when one is"
            return sample_prompt(info, None if name == "model" else name)

        self._ask(
            PickScreen("Prompt formats", narrowed(rows), hint=_CHOOSES, preview=preview),
            partial(speaking.template, screen),
        )


def _found(hit: SearchHit) -> Row:
    ident = f"{hit.conversation_id} {hit.message_id or ''}"
    return Row(ident, hit.snippet, f"{hit.title} · {_when(hit.created_at)}")


def _when(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
    except (OverflowError, OSError, ValueError):
        raise NotPossibleError("a message has a date that is none; exlchat sessions check --repair mends it") from None

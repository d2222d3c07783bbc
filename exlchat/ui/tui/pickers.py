"""What can be chosen from a list: a branch, something that was found, a persona, a prompt format, a sampling preset."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from textual.color import Color
from textual.content import Content

from exlchat.app.chat import tree_actions
from exlchat.app.chat.finding import ago, day
from exlchat.app.chat.found import around, excerpt, places_of, search, words_found
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.app.commands import sampling, speaking
from exlchat.app.commands.action import attempt
from exlchat.chat.plain_text import Excerpt, plain
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import char_of, label_of
from exlchat.ui.tui.screens.pick import PickScreen, Row, narrowed
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from exlchat.app.chat.tree_lines import TreeLine
    from exlchat.chat.store.search import SearchHit
    from exlchat.ui.tui.chat_view import ChatView
    from exlchat.ui.tui.finding import ConversationFinder

_HITS = 60
_WIDTH = 96
_AROUND = 9
"""Columns of a list at most, and those of its frame, its bar and what stands before a row."""
_TYPED = 500
_SHOWN_SEED = 0
_COLOURFUL = ("256", "truecolor")
_CHOOSES = "Enter chooses · Esc leaves"


class Pickers:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatView, finding: ConversationFinder) -> None:
        self._screen = screen
        self._finding = finding

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
        now = time.time()
        rows = [
            Row(
                line.message.id,
                f"{_who(line)}: {line.text}",
                when := ago(line.message.created_at, now),
                line.message.id == tip,
                _branch_row(line, when, is_shown=line.message.id in shown, is_tip=line.message.id == tip),
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

        hits: dict[str, SearchHit] = {}

        def rows(text: str) -> Sequence[Row]:
            nonlocal hits
            hits = {str(number): hit for number, hit in enumerate(search(store, text, _HITS))}
            room, now = min(screen.size.width, _WIDTH) - _AROUND, time.time()
            return [_found(ident, hit, room, now) for ident, hit in hits.items()]

        def show(ident: str) -> None:
            hit = hits[ident]
            if hit.conversation_id != screen.session.conversation_id or hit.message_id is None:
                if not screen.open_conversation(hit.conversation_id):
                    return
                screen.composer.focus()
            if hit.message_id is not None:
                tree_actions.show(screen.session, hit.message_id)
                screen.show_messages(at=hit.message_id)
                screen.transcript.focus()
                self._finding.show(hit)

        def preview(ident: str) -> str | Content:
            hit = hits[ident]
            if hit.message_id is None:
                return ""
            message = store.message(hit.message_id)
            said = answer_parts(message)
            inside = said.answer if places_of(said.answer, words_found(hit)) else message.text
            return _marked(around(hit, inside), "$quiet-text")

        picker = PickScreen(
            "Search",
            rows,
            hint="Enter opens there, and goes on to the next place · Esc leaves",
            placeholder="Words, or how they begin; on:2026-03, before:, after:, tag:",
            preview=preview,
            typed=typed,
        )
        self._ask(picker, show)

    def archived(self) -> None:
        """What was taken off the list; the chosen one is opened and stays in the archive."""
        screen, now = self._screen, time.time()
        there = screen.session.store.list_conversations("archived")
        if not there:
            raise NotPossibleError("nothing is in the archive; /archive puts this conversation there")
        rows = [
            Row(one.id, one_line(one.title, 60), f"{day(one.updated_at)} · {ago(one.updated_at, now)}") for one in there
        ]

        def opened(ident: str) -> None:
            if screen.open_conversation(ident):
                screen.composer.focus()
                screen.tell("This conversation is in the archive; /archive off puts it back on the list")

        self._ask(PickScreen("Archive", narrowed(rows), hint="Enter opens · Esc leaves"), opened)

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
        by_id = {one.id: one for one in listed.entries}
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

        def preview(ident: str) -> str | Content:
            one = by_id[ident]
            frozen = freeze(one.persona, user=user, now=datetime.now(), seed=_SHOWN_SEED)
            greeting = f"\n\n“{frozen.greetings[0]}”" if frozen.greetings else ""
            text = f"{frozen.system_text}{greeting}"
            return text if one.picture is None else _below_its_picture(one.picture, text, screen)

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


def _found(ident: str, hit: SearchHit, room: int, now: float) -> Row:
    """Two lines: title and date, and what stands around the place that was found."""
    when = f"{day(hit.created_at)} · {ago(hit.created_at, now)}"
    title = one_line(hit.title, max(room - len(when) - 2, 12))
    if hit.message_id is not None:
        there = excerpt(hit, room)
    else:
        there = Excerpt("in the title") if hit.marks else plain(hit.snippet)
    first = _marked(Excerpt(title, places_of(title, words_found(hit))), "bold")
    return Row(
        ident,
        title,
        when,
        shown=Content.assemble(
            "  ",
            first,
            Content.styled(f"  {when}", "$quiet-text"),
            "\n    ",
            _marked(there, "$quiet-text"),
        ),
    )


def _marked(text: Excerpt, style: str) -> Content:
    shown = Content.styled(printable(text.text), style)
    for first, end in text.marks:
        shown = shown.stylize("$background on $warning", first, end)
    return shown


def _who(line: TreeLine) -> str:
    """The role, or of a group the name of who gave the answer."""
    name = char_of(line.message)
    return printable(label_of(name)) if name is not None else line.message.role


def _branch_row(line: TreeLine, when: str, *, is_shown: bool, is_tip: bool) -> Content:
    mark = Content.styled("● " if is_tip else "▌ " if is_shown else "  ", "$primary")
    return Content.assemble(
        mark,
        Content.styled(line.lines, "$quiet-text"),
        Content.styled(f"{_who(line)}: ", "$primary" if is_shown else "$quiet-text"),
        Content(printable(line.text)),
        Content.styled(f"  {when}", "$quiet-text"),
    )


def _below_its_picture(picture: Path, text: str, screen: ChatView) -> Content:
    """The text of a persona, its picture above it where the terminal has colours enough."""
    from exlchat.ui.render.avatar import AvatarError, avatar

    if screen.app.console.no_color or screen.app.console.color_system not in _COLOURFUL:
        return Content(text)
    try:
        shown = avatar(picture, Color.parse(screen.app.theme_variables["surface"]))
    except AvatarError as error:
        shown = Content.styled(one_line(str(error), 80), "$quiet-text")
    return Content("\n\n").join((shown, Content(text)))

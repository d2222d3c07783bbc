"""What the actions of the registry do in the line mode; most of it is `chat_commands`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.commands.chat import QUIT_WITHIN_SECONDS, TITLE_CELLS, ChatCommands
from exlchat.app.commands.code import code_meant, free_name, saved_line
from exlchat.app.commands.token import TokenCommands
from exlchat.app.library.listing import fit_text, summary
from exlchat.app.panels.cache import cache_rows
from exlchat.chat.store.conversations import StoreError
from exlchat.ui.line.key_words import IN_LINES, PLAIN_KEYS
from exlchat.ui.line.looking import Looking, day_of
from exlchat.ui.line.message_lists import about
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from exlchat.app.library.listing import Entry
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.llm.info import CacheReport
    from exlchat.ui.line.chat import LineChat

_TYPED_CELLS = 200
_LISTED = 30
"""How many conversations /open lists."""


class LineCommands(ChatCommands):
    """Carries actions out for one line mode."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._last_ctrl_c = 0.0
        self.looking = Looking(chat)
        super().__init__(chat)

    def _doors(self) -> Mapping[str, Callable[[str], None]]:
        return {
            "model": self._chat.model_commands.run,
            "models": lambda _: self._models(),
            "undo": lambda _: self._take_back(),
            "redo": lambda _: self._changed(f"Done again: {tree_actions.redo(self.front.session).what}"),
            "branch": self._branch,
            "cut": self._cut,
            "alternative": self._alternative,
            "edit": self._chat.editing.begin,
            "editor": lambda _: self._chat.paper.write_in_editor(),
            "history": self._typed_before,
            "compare": self._chat.comparing.begin,
            "messages": lambda _: self.looking.messages(),
            "find": self.looking.find,
            "tree": self.looking.tree,
            "search": self.looking.search,
            "source": self.looking.source,
            "prompt": lambda _: self.looking.prompt(),
            "save-code": self._save_code,
            "settings": self._chat.settings_commands.run,
            "template": lambda name: self._template(name) if name else self._list_templates(),
            "log": lambda _: self._log(),
            "sidebar": lambda _: self._list_conversations(),
            "probabilities": TokenCommands(self.front, self._probabilities).run,
            "help": lambda _: self.front.note("\n".join(self._help())),
            "copy-or-stop": lambda _: self._stop_or_quit(),
            "quit": lambda _: self._chat.leave(),
        }

    def run(self, action_id: str, argument: str = "") -> bool:
        """Do an action; one that cannot be done, or not without a screen, says why. Whether it was done."""
        if not self.known(action_id):
            action = BY_ID[action_id]
            name = action.slash or action.title
            self.front.tell(f"{name} needs the screen of the app, which exlchat without --line has", warning=True)
            return False
        if action_id in ("stop", "copy-or-stop") and self._chat.editing.leave():
            return True
        return super().run(action_id, argument)

    def _help(self) -> Iterator[str]:
        if not self._chat.paper.repaints:
            return help_lines(PLAIN_KEYS)
        # No key is bound where lines are only appended.
        from exlchat.ui.line.own_keys import keys_in_words

        return help_lines(keys_in_words(self._chat.keys, self.known))

    def _retry(self, back: str) -> None:
        if back:
            self.front.session.require_quiet()
            message = tree_actions.said_back(self.front.session, back)
            self.front.note(f"Answered again: {about(message, self.front.session.places)}")
        super()._retry(back)

    def _list_templates(self) -> None:
        from exlchat.app.panels.template_sample import formats_there_are

        now = self.front.session.template or "model"
        lines = [f"/template NAME chooses one of these; now it is {now}:"]
        lines += [f"  {name}: {one_line(told, 100)}" for name, told in formats_there_are()]
        self.front.note("\n".join(lines))

    def _save_code(self, argument: str) -> None:
        blocks, name = code_meant(self.front.session, argument)
        self.front.tell(saved_line(blocks, name or free_name(blocks)))

    def _stop_or_quit(self) -> None:
        now = time.monotonic()
        if now - self._last_ctrl_c < QUIT_WITHIN_SECONDS:
            self._chat.leave()
            return
        self._last_ctrl_c = now
        stopped = self.front.session.stop()
        if self._chat.paper.repaints or not stopped:
            # A written line would stand before the end of the answer, which says by itself that it was stopped.
            said = "Stopped; ctrl+c again quits" if stopped else "ctrl+c again quits"
            self._chat.paper.hint(said, QUIT_WITHIN_SECONDS)

    def _copy_text(self, text: str) -> None:
        self._chat.paper.copy(text)

    def _typed_before(self, part: str) -> None:
        texts = [one for one in self._chat.services.typed.texts() if part.casefold() in one.casefold()]
        if not texts:
            raise NotPossibleError("nothing that was typed before has that in it" if part else "nothing was typed yet")
        self.front.note("\n".join(one_line(one, _TYPED_CELLS) for one in texts[-_LISTED:]))

    def _log(self) -> None:
        rows = self.front.services.log.rows()
        self.front.note("\n".join(f"{left}: {right}" if left and right else left or right for left, right in rows))

    # The tree of messages

    def _take_back(self) -> None:
        if self.front.session.deleted_last:
            self._undo()
        else:
            self._changed(f"Undone: {tree_actions.undo(self.front.session).what}; /redo does it again")

    def _branch(self, back: str) -> None:
        session = self.front.session
        message = tree_actions.said_back(session, back)
        self.front.unsent.keep()
        tree_actions.branch_off(session, message.id)
        self._changed("This is a new conversation with what came before; /open lists the other one")

    def _cut(self, back: str) -> None:
        session = self.front.session
        tree_actions.delete_from(session, tree_actions.said_back(session, back).id)
        self._changed("Deleted from there on; /undo brings it back")

    def _alternative(self, number: str) -> None:
        self.front.session.require_quiet()
        at, last = tree_actions.numbered_alternative(self.front.session, number)
        if at:
            tree_actions.alternative(self.front.session, last.id, at)
            self._changed(f"Alternative {number} is shown")

    def _probabilities(self, message_id: str) -> None:
        session = self.front.session
        wait = self.questions_wait_for()
        self.front.tell("Computing the probabilities…" if wait is None else f"The probabilities are shown when {wait}")
        policy = session.generation.context_policy
        session.questions.chances(message_id, self._tell_chances, template=session.template, policy=policy)

    def _tell_chances(self, chances: AnswerChances | None) -> None:
        if chances is not None:
            # No start needs it.
            from exlchat.app.panels.token_words import chance_lines

            self.front.note("\n".join(chance_lines(chances)))

    def _changed(self, line: str) -> None:
        """The branch is another one: what is on the paper is not it, so its end is written anew."""
        self.front.show_conversation()
        self.front.tell(line)

    # Lists

    def _list_conversations(self) -> None:
        listed = self.front.session.store.list_conversations()
        if not listed:
            raise NotPossibleError("there is no conversation yet")
        opened = self.front.session.conversation_id
        lines = ["/open N opens one of these:"]
        for number, one in enumerate(listed[:_LISTED], 1):
            day = day_of(one.updated_at)
            here = ", open now" if one.id == opened else ""
            lines.append(f"{number:>3}  {one_line(one.title, TITLE_CELLS)} ({one.message_count} messages, {day}{here})")
        if len(listed) > _LISTED:
            lines.append(f"and {len(listed) - _LISTED} older ones; exlchat sessions search WORDS finds one")
        self.front.note("\n".join(lines))

    def _models(self) -> None:
        self.front.tell("Looking through the folders…")
        self._chat.in_background(self.front.services.shelf.listed, self._models_listed)

    def _models_listed(self, entries: Sequence[Entry]) -> None:
        lines = ["/model NAME loads one of these:"]
        lines += [_model_line(entry) for entry in entries]
        self.front.note("\n".join(lines) if entries else "There are no models; exlchat pull fetches one")

    def _ask_title(self, conversation_id: str) -> None:
        del conversation_id
        raise NotPossibleError("/rename needs TITLE: /rename TITLE")

    def _show_cache(self, report: CacheReport, titles: Mapping[str, str], *, late: bool) -> None:
        del late
        self.front.note("\n".join(f"{left}: {right}" if right else left for left, right in cache_rows(report, titles)))

    # Themes

    def _themes(self) -> Iterable[str]:
        return self._chat.reload_themes()

    def _theme_now(self) -> str:
        return self._chat.theme

    def _choose_theme(self, name: str) -> None:
        self._chat.choose_theme(name)

    def titles(self) -> list[str]:
        """Titles of the conversations that /open lists, in its order; none when they cannot be read."""
        try:
            listed = self.front.session.store.list_conversations()
        except StoreError:
            return []
        return [one_line(one.title, TITLE_CELLS) for one in listed[:_LISTED]]

    def known(self, action_id: str) -> bool:
        """Whether an action can be done in lines at all."""
        return action_id in self._by_id


def help_lines(keys: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Keys of the line mode with what they do, and all commands of the registry."""
    yield "Keys"
    for names, what in keys:
        yield f"  {names}: {what}"
    yield "Commands"
    for action in ACTIONS:
        if action.slash:
            yield f"  {action.usage}: {IN_LINES.get(action.id, action.help)}"
    yield "  //text: Send text that begins with a slash."


def _model_line(entry: Entry) -> str:
    if entry.card.problem is not None:
        return f"  {entry.name}: cannot be loaded: {entry.problem}"
    return f"  {entry.name}: {summary(entry)}; {fit_text(entry)}"

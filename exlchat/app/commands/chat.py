"""What the actions of the registry do, wherever they come from: the app's screen or the line mode."""

from __future__ import annotations

import difflib
import re
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.answering import was_cut
from exlchat.app.chat.session import ChatSession, NotPossibleError
from exlchat.app.commands.actions import Situation
from exlchat.app.commands.persona import PersonaCommands
from exlchat.app.commands.preset import use_preset
from exlchat.app.commands.saving import save
from exlchat.app.commands.speech import SpeechCommands
from exlchat.app.panels.cache import cost_line
from exlchat.app.panels.figures import describe_figures
from exlchat.app.panels.sampling import panel_lines
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.context_window import newest_record
from exlchat.chat.prompt_format import PromptError
from exlchat.chat.store.conversations import StoreError
from exlchat.paths import FolderError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from exlchat.app.commands.chat_front import ChatFront
    from exlchat.chat.prompt.cost import PromptCost
    from exlchat.llm.info import CacheReport

QUIT_WITHIN_SECONDS = 2.0
"""How soon a second ctrl+c quits."""
TITLE_CELLS = 60


def situation_of(session: ChatSession) -> Situation:
    """What the availability of actions depends on."""
    last = session.last_said
    return Situation(
        answering=session.answering is not None or session.being_written is not None,
        has_messages=bool(session.branch),
        has_answer=session.last_answer is not None,
        can_retry=last is not None,
        answer_was_cut=last is not None and was_cut(last),
        can_undo_delete=session.can_undo_delete,
    )


class ChatCommands:
    """Carries actions out for one front. Failures are told in one line and change nothing.

    A front adds what needs a screen of its kind: `_doors`, `_copy_text`, `_show_cache`, and the three about themes.
    """

    def __init__(self, front: ChatFront) -> None:
        self.front = front
        self.personas = PersonaCommands(front)
        front.session.on_refused = partial(front.tell, warning=True)
        self._by_id = dict(self._shared()) | dict(self._doors())

    def _shared(self) -> Mapping[str, Callable[[str], None]]:
        session = self.front.session
        return {
            "stop": lambda _: self._stop(),
            "new": lambda _: self.front.new_conversation(),
            "open": self._open,
            "retry": self._retry,
            "continue": lambda _: self._answer_again(session.continue_answer),
            "pin": lambda back: self._pin(back, pinned=True),
            "unpin": lambda back: self._pin(back, pinned=False),
            "summary": lambda _: self._summary(),
            "copy": self._copy,
            "rename": self._rename,
            "save": partial(save, self.front),
            "delete": lambda _: self._delete(),
            "undo": lambda _: self._undo(),
            "system": self._system,
            "persona": self.personas.run,
            "preset": partial(use_preset, self.front),
            "template": self._template,
            "theme": self._theme,
            "set": self._set,
            "sampling": lambda _: self.front.note("\n".join(panel_lines(self.front))),
            "stats": lambda _: self.front.note(describe_figures(session.last_answer)),
            "cache": lambda _: self._cache(),
            "cost": self._cost,
            **SpeechCommands(self.front).doors(),
        }

    # What each front does in its own way

    def _doors(self) -> Mapping[str, Callable[[str], None]]:
        """Actions of this front alone, or done otherwise than `_shared` says."""
        raise NotImplementedError

    def _list_conversations(self) -> None:
        """Let somebody choose a conversation to open."""
        raise NotImplementedError

    def _ask_title(self, conversation_id: str) -> None:
        """Let somebody type a title."""
        raise NotImplementedError

    def _copy_text(self, text: str) -> None:
        """To the clipboard. Raises `NotPossibleError` where there is none."""
        raise NotImplementedError

    def _show_cache(self, report: CacheReport, titles: Mapping[str, str], *, late: bool) -> None:
        """What the cache holds; `late` is whether it was waited for."""
        raise NotImplementedError

    def _themes(self) -> Iterable[str]:
        """Names of the themes, read anew."""
        raise NotImplementedError

    def _theme_now(self) -> str:
        raise NotImplementedError

    def _choose_theme(self, name: str) -> None:
        """One that is there."""
        raise NotImplementedError

    # Carrying out

    def run(self, action_id: str, argument: str = "") -> bool:
        """Do an action; one that cannot be done says why. Whether it was done."""
        return self.attempt(lambda: self._by_id[action_id](argument))

    def attempt(self, what: Callable[[], None]) -> bool:
        """Do something; what cannot be done says why. Whether it was done."""
        try:
            what()
        except (StoreError, PromptError, NotPossibleError, FolderError, ValueError) as error:
            self.front.tell(str(error), warning=True)
            return False
        return True

    # Answers

    def _stop(self) -> None:
        self.front.session.stop()

    def _answer_again(self, begin: Callable[[], None]) -> None:
        begin()
        self.front.show_messages()

    def _retry(self, back: str) -> None:
        session = self.front.session
        if back:
            message = tree_actions.said_back(session, back)
            self._answer_again(lambda: tree_actions.answer_again(session, message.id))
        else:
            self._answer_again(session.retry)

    def _copy(self, back: str) -> None:
        session = self.front.session
        wanted = tree_actions.said_back(session, back) if back else session.last_answer
        if wanted is None:
            raise NotPossibleError("there is no answer to copy yet")
        self._copy_text(answer_parts(wanted).answer)
        self.front.tell(f"Copied “{one_line(answer_parts(wanted).answer, 40)}”" if back else "Copied the last answer")

    def _pin(self, back: str, *, pinned: bool) -> None:
        if back and not back.isdecimal():
            raise NotPossibleError(f"{back!r} is no number of messages counted back from the end, such as 3")
        message = self.front.session.pin(int(back or 1), pinned)
        self.front.show_messages()
        said = one_line(message.text, TITLE_CELLS)
        self.front.tell(f"Pinned: the model goes on seeing “{said}”" if pinned else f"No longer pinned: “{said}”")

    def _summary(self) -> None:
        record = newest_record(self.front.session.branch)
        if record is None or not record.summary:
            raise NotPossibleError("the model sees no summary in this conversation")
        self.front.note(f"Summary of what is no longer seen:\n{record.summary}")

    # Conversations

    def _open(self, number: str) -> None:
        """The one of that number in the list, newest first; without a number the list itself."""
        if not number:
            self._list_conversations()
            return
        listed = self.front.session.store.list_conversations()
        if not listed:
            raise NotPossibleError("there is no conversation yet")
        if not number.isdecimal() or not 1 <= int(number) <= len(listed):
            raise NotPossibleError(
                f"{one_line(number, 20)} is no number of a conversation, from 1, the newest, to {len(listed)}"
            )
        self.front.open_conversation(listed[int(number) - 1].id)

    def _rename(self, title: str) -> None:
        conversation_id = self.front.session.conversation_id
        if conversation_id is None:
            raise NotPossibleError("a new conversation has no title yet; write in it first")
        if title:
            self.rename_to(conversation_id, title)
        else:
            self._ask_title(conversation_id)

    def rename_to(self, conversation_id: str, title: str | None) -> None:
        """Give a title that was asked for; `None` keeps the old one."""
        if title is None:
            return
        try:
            self.front.session.rename(conversation_id, title)
        except StoreError as error:
            self.front.tell(str(error), warning=True)
        self.front.refresh_around()

    def _delete(self) -> None:
        if (conversation_id := self.front.session.conversation_id) is None:
            raise NotPossibleError("this conversation is new and has nothing to delete")
        self.delete_conversation(conversation_id)

    def delete_conversation(self, conversation_id: str) -> None:
        """Delete with a way back."""
        front = self.front
        was_open = conversation_id == front.session.conversation_id
        if was_open:
            front.unsent.keep()
        try:
            title = front.session.delete(conversation_id)
        except StoreError as error:
            front.tell(str(error), warning=True)
            return
        if was_open:
            front.show_conversation()
        else:
            front.refresh_around()
        front.tell(f"Deleted “{one_line(title, TITLE_CELLS)}”; /undo brings it back")

    def _undo(self) -> None:
        conversation_id, title = self.front.session.undo_delete()
        self.front.open_conversation(conversation_id)
        self.front.tell(f"“{one_line(title, TITLE_CELLS)}” is back")

    # Settings

    def _system(self, text: str) -> None:
        front = self.front
        if text:
            front.session.set_system(text)
            if front.session.branch:
                front.show_messages()
            front.tell("The system prompt is set")
            if front.session.last_said is not None:
                self._ask_cost("With it")
        else:
            prompt = front.session.system_prompt
            front.note(f"System prompt: {prompt}" if prompt else "There is no system prompt; /system TEXT sets one")

    def _template(self, name: str) -> None:
        session = self.front.session
        if name:
            self.front.model.check_template(name)
            session.template = None if name == "model" else name
            self.front.tell(f"The prompt template is {name} from the next message on")
            if session.last_said is not None:
                self._ask_cost("With it")
        else:
            self.front.note(f"Prompt template: {session.template or 'model'}")

    def _theme(self, name: str) -> None:
        themes = list(self._themes())
        if name in themes:
            self._choose_theme(name)
        elif name:
            nearest = difflib.get_close_matches(name, themes, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(themes)}"
            raise NotPossibleError(f"there is no theme {name}; {hint}")
        else:
            self.front.note(f"Theme: {self._theme_now()}. There are {', '.join(themes)}; /theme NAME chooses one")

    def _set(self, argument: str) -> None:
        session = self.front.session
        # A value may have spaces and equals signs of its own.
        name, _, value = re.sub(r"[\s=]+", " ", argument.strip(), count=1).partition(" ")
        if value:
            session.draw_by(session.generation.with_value(name, value))
        elif name:
            raise NotPossibleError("/set needs a name and a value, such as /set temperature 0.7")
        self.front.note(session.generation.describe())

    # The cache

    def _cache(self) -> None:
        wait = self.questions_wait_for()
        if wait is not None:
            self.front.tell(f"The cache is shown when {wait}")
        self.front.session.questions.cache(partial(self._cache_told, late=wait is not None))

    def questions_wait_for(self) -> str | None:
        """What has to happen before the engine can be asked something; `None` when it can be now."""
        if self.front.model.info is None and self.front.model.failure is None:
            return "the model is loaded"
        return "the answer has ended" if self.front.session.busy else None

    def _cache_told(self, report: CacheReport, *, late: bool) -> None:
        try:
            titles = {one.id: one.title for one in self.front.session.store.list_conversations()}
        except StoreError:
            titles = {}
        self._show_cache(report, titles, late=late)

    def _cost(self, system: str) -> None:
        if (wait := self.questions_wait_for()) is not None:
            self.front.tell(f"The cost is told when {wait}")
        self._ask_cost("With that system prompt" if system else "", system or None)

    def _ask_cost(self, how: str, system: str | None = None) -> None:
        """Ask what the open conversation costs. The answer names it, if another one is open by then."""
        session = self.front.session
        asked = session.conversation_id
        title = one_line(session.conversation.title, TITLE_CELLS) if session.conversation else "the new conversation"

        def show(cost: PromptCost) -> None:
            what = "this conversation" if session.conversation_id == asked else f"“{title}”" if asked else title
            line = cost_line(cost, f"{how} {what}".strip())
            self.front.tell(line[0].upper() + line[1:])

        session.ask_cost(show, system)

"""What /model does: show, choose and change the model, and remember how it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.library.memory import NAMES
from exlchat.app.library.shelf import shown_name
from exlchat.config.layers import STARTED
from exlchat.config.schema import SETTINGS
from exlchat.llm.info import ModelError
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.chat.open_conversation import ModelDefaults
    from exlchat.app.commands.chat_front import ChatFront
    from exlchat.app.library.shelf import Shelf

_SET = "set"


class ModelCommands:
    """Belongs to one front and runs on its thread."""

    def __init__(self, front: ChatFront) -> None:
        self._front = front
        self._given = front.session.defaults
        self._before: ModelDefaults | None = None

    @property
    def _shelf(self) -> Shelf:
        return self._front.services.shelf

    # Changing the model

    def run(self, argument: str) -> None:
        """Without an argument show the model; `set NAME VALUE` remembers; anything else is a model to be loaded.

        Raises:
            NotPossibleError: there is no such model or setting.
            ValueError: a value that cannot be.
            PromptError: a prompt template that is not there.
        """
        words = argument.replace("=", " ", 1).split(None, 2)
        if not words:
            self._front.note(self._describe())
        elif words[0] == _SET and not Path(argument).exists():
            if len(words) < 3:
                raise NotPossibleError(
                    f"/model set needs a name ({', '.join(NAMES)}) and a value, such as context 8192"
                )
            self._set(words[1], words[2])
        else:
            try:
                path = self._shelf.choose(argument)
            except ModelError as error:
                raise NotPossibleError(str(error)) from error
            self.change_to(path)

    def change_to(self, path: Path) -> None:
        """Have a model take the place of the present one, when the answers that are asked for have ended."""
        session = self._front.session
        if self._before is None:
            self._before = session.defaults
        held = self._shelf.held(path)
        generation = self._shelf.generation(path)
        # What was changed with /set goes on with the next model.
        keeps = session.defaults.generation != self._given.generation
        given = session.use(held.value("template"), held.value("system"), None if keeps else generation)
        self._given = self._given if keeps else given
        self._front.change_model(self._shelf.load(path))
        if session.being_written is not None:
            self._front.tell(f"{shown_name(path)} is loaded when the answer has ended; Esc or ctrl+c stops that")

    def take_back(self) -> None:
        """The model before goes on: what was taken over for the other one goes as well."""
        if self._before is not None:
            before, self._before = self._before, None
            self._front.session.use(before.template, before.system, before.generation)

    def settled(self) -> None:
        """A change has come to its end."""
        self._before = None

    # Remembering

    def _describe(self) -> str:
        info = self._front.model.info
        remembered = self._shelf.memory.settings_of(Path(info.path)).describe() if info else ""
        kept = f"\nRemembered for this model: {printable(one_line(remembered))}" if remembered else ""
        return f"{printable(self._front.model.describe())}{kept}"

    def _set(self, name: str, value: str) -> None:
        info, session = self._front.model.info, self._front.session
        if info is None:
            raise NotPossibleError("no model is loaded now; set this when one is")
        path = Path(info.path)
        settings = self._shelf.memory.settings_of(path).with_value(name, value)
        if name == "template" and settings.template is not None:
            self._front.model.check_template(settings.template)
        self._shelf.memory.keep(path, settings)
        held = self._shelf.held(path)
        if name == "template":
            session.use(held.value("template"), session.defaults.system, None)
            when = "from the next message on"
        elif name == "system":
            session.use(session.template, held.value("system"), None)
            when = "for new conversations"
        else:
            when = "when it is loaded next; /model and its name loads it again"
        over = held.source(name)
        if over in STARTED:
            when = "at other starts; what was typed on the command line wins in this one"
        elif over == "environment":
            when = f"at other starts; the environment variable {SETTINGS[name].variable} wins in this one"
        self._front.tell(f"Remembered for {self._front.model.name}: {name}, {when}")

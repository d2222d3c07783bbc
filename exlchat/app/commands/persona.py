"""What /persona does: say who speaks, and have another speak from here on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.commands.chat_front import ChatFront


class PersonaCommands:
    """Belongs to one front and runs on its thread."""

    def __init__(self, front: ChatFront) -> None:
        self._front = front

    def run(self, name: str) -> None:
        """Without a name say who speaks and who there is; else that persona speaks.

        Raises:
            NotPossibleError: there is no such persona, its file cannot be used, or an answer is on its way.
            StoreError: it could not be written.
        """
        from exlchat.app.speaking import chosen_persona
        from exlchat.chat.personas.persona import PersonaError
        from exlchat.chat.personas.registry import PERSONAS

        front = self._front
        if not name:
            speaking = front.session.persona
            who = f"Persona: {one_line(speaking.name)}" if speaking is not None else "No persona speaks"
            ids = ", ".join(one.id for one in PERSONAS.all().entries)
            front.note(f"{who}; /persona NAME changes that: {ids}")
            return
        try:
            persona = chosen_persona(
                name, seed=front.session.generation.seed, user=front.services.shelf.settings.user_name
            )
        except PersonaError as error:
            raise NotPossibleError(str(error)) from error
        front.session.let_speak(persona)
        front.show_messages()
        front.tell(f"{one_line(persona.name)} speaks from here on{self._meant_for(persona.model)}")

    def _meant_for(self, model: str | None) -> str:
        """How to load the model that a persona is meant for, where another one is loaded."""
        info = self._front.model.info
        if model is None or info is None:
            return ""
        try:
            path = self._front.services.shelf.choose(model)
        except ModelError as error:
            return f"; it is meant for another model: {error}"
        return "" if path == Path(info.path) else f"; it is meant for another model: /model {one_line(model)}"

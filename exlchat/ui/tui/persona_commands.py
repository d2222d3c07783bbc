"""What /persona does: say who speaks, and have another speak from here on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.chat.plain_text import one_line
from exlchat.engine.events import ModelError
from exlchat.ui.chat_session import NotPossibleError

if TYPE_CHECKING:
    from exlchat.ui.tui.screens.chat import ChatScreen


class PersonaCommands:
    """Belongs to one screen and runs on its thread."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def run(self, name: str) -> None:
        """Without a name say who speaks and who there is; else that persona speaks.

        Raises:
            NotPossibleError: there is no such persona, its file cannot be used, or an answer is on its way.
            StoreError: it could not be written.
        """
        from exlchat.chat.personas.persona import PersonaError
        from exlchat.chat.personas.shelf import all_personas
        from exlchat.ui.personas.speaking import chosen_persona

        screen = self._screen
        if not name:
            speaking = screen.session.persona
            who = f"Persona: {one_line(speaking.name)}" if speaking is not None else "No persona speaks"
            ids = ", ".join(one.id for one in all_personas().personas)
            screen.note(f"{who}; /persona NAME changes that: {ids}")
            return
        try:
            persona = chosen_persona(
                name, seed=screen.session.generation.seed, user=screen.services.shelf.settings.user_name
            )
        except PersonaError as error:
            raise NotPossibleError(str(error)) from error
        screen.session.let_speak(persona)
        screen.show_messages()
        screen.tell(f"{one_line(persona.name)} speaks from here on{self._meant_for(persona.model)}")

    def _meant_for(self, model: str | None) -> str:
        """How to load the model that a persona is meant for, where another one is loaded."""
        info = self._screen.model.info
        if model is None or info is None:
            return ""
        try:
            path = self._screen.services.shelf.choose(model)
        except ModelError as error:
            return f"; it is meant for another model: {error}"
        return "" if path == Path(info.path) else f"; it is meant for another model: /model {one_line(model)}"

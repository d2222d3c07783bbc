"""Who speaks, and in what format the model is told."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.commands.cache import ask_cost
from exlchat.chat.prompt.note import DEEPEST, USUAL_DEPTH, Note
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View
    from exlchat.chat.personas.files import ImportedPersona

command = partial(action.command, topic="Personas and prompt formats")

CARDS = (".png", ".charx", ".json", ".yaml", ".yml", ".md")
"""Files that a character may be in."""


@command(
    "system",
    "System prompt",
    "Say who is speaking: set the system prompt of this conversation; without TEXT, show it.",
    "/system",
    "[TEXT]",
    is_typed=True,
    after="probabilities",
    aliases=("/sysprompt", "/instructions"),
)
def system(view: View, text: str) -> None:
    if text:
        view.session.set_system(text)
        if view.session.branch:
            view.show_messages()
        view.tell("The system prompt is set")
        if view.session.last_said is not None:
            ask_cost(view, "With it")
    else:
        prompt = view.session.system_prompt
        view.note(f"System prompt: {prompt}" if prompt else "There is no system prompt; /system TEXT sets one")


@command(
    "persona",
    "Persona",
    "Have a persona speak from here on, or the character of a card; without NAME, say who speaks and who there is.",
    "/persona",
    "[NAME|FILE]",
    keys=("f7",),
    in_lines="Have a persona speak from here on, or the character of a card; without it, say who there is.",
    aliases=("/character", "/char", "/role", "/card"),
)
def persona(view: View, name: str) -> None:
    """Without a name say who speaks and who there is; else that persona speaks."""
    from exlchat.app.speaking import chosen_persona
    from exlchat.chat.personas.persona import PersonaError
    from exlchat.chat.personas.registry import PERSONAS

    session = view.session
    if not name:
        group = session.spoken.group is not None
        who = (
            f"{'Group' if group else 'Persona'}: {one_line(session.spoken.who)}"
            if session.spoken.who
            else "No persona speaks"
        )
        ids = ", ".join(one.id for one in PERSONAS.all().entries)
        view.note(f"{who}; /persona NAME changes that: {ids}")
        return
    try:
        if _is_card(name):
            name = keep_card(view, card_from(paths.expanded(name)))
        chosen = chosen_persona(name, seed=session.generation.seed, user=view.shelf.settings.user_name)
    except PersonaError as error:
        raise NotPossibleError(str(error)) from error
    before = session.conversation_id
    session.let_speak(chosen)
    show_from(view, before)
    view.tell(f"{one_line(chosen.name)} speaks from here on{_meant_for(view, chosen.model)}")


def _is_card(name: str) -> bool:
    """Whether it is a file, and none that is one of ours."""
    try:
        path = paths.expanded(name)
        return path.suffix.lower() in CARDS and path.is_file()
    except (OSError, ValueError):
        return False


def card_from(path: Path) -> ImportedPersona:
    """Raises `PersonaError`: there is no character in it."""
    from exlchat.chat.personas.files import read_file

    return read_file(path)


def keep_card(view: View, card: ImportedPersona) -> str:
    """Puts a character among the personas, where it is not there already; its id.

    Raises:
        NotPossibleError: another one is called so, or it cannot be written.
    """
    from exlchat.chat.personas.keeping import keep_persona
    from exlchat.chat.personas.persona import PersonaError
    from exlchat.chat.personas.registry import PERSONAS, persona_id

    ident = persona_id(card.persona.name)
    there = next((one for one in PERSONAS.all().entries if one.id == ident and not one.shipped), None)
    if there is not None and there.persona == card.persona:
        return ident
    try:
        _, lines = keep_persona(card)
    except (PersonaError, paths.FolderError) as error:
        raise NotPossibleError(str(error)) from None
    for line in (*card.notices, *lines):
        view.tell(line, warning=True)
    return ident


def show_from(view: View, before: str | None) -> None:
    """Show what the open conversation begins with, or what came to it; `before` is the one that was open."""
    if before in (None, view.session.conversation_id):
        view.show_messages()
    else:
        view.show_conversation()


@command(
    "note",
    "Author's note",
    "Put a text into every prompt, a few messages before its end; `depth N` says how many, `-` takes it away.",
    "/note",
    "[TEXT]",
    is_typed=True,
    aliases=("/authornote", "/an"),
)
def note(view: View, text: str) -> None:
    session = view.session
    held = session.spoken.own.note
    if not text:
        shown = f"{_placed(held)}: {held.text}" if held is not None else "There is no author's note"
        view.note(f"{shown}\n/note TEXT sets it, /note depth N moves it, /note - takes it away")
        return
    if text == "depth":
        raise NotPossibleError(f"/note depth N says how many messages stand behind the note, 0 to {DEEPEST}")
    moved = re.fullmatch(r"depth\s+(-?\d{1,9})", text)
    if (text == "-" or moved) and held is None:
        raise NotPossibleError("there is no author's note; /note TEXT puts one into every prompt")
    if text == "-":
        session.take_note(None)
        view.tell("The author's note is taken away")
    elif moved and held is not None:
        session.take_note(replace(held, depth=int(moved[1])))
        view.tell(f"{_placed(session.spoken.own.note)} now")
    else:
        usual = USUAL_DEPTH if held is None else held.depth
        session.take_note(Note(text, usual, view.shelf.settings.user_name))
        view.tell(f"{_placed(session.spoken.own.note)} now, in every prompt")
    if session.last_said is not None:
        ask_cost(view, "With it" if session.spoken.own.note is not None else "Without it")


def _placed(note: Note | None) -> str:
    depth = 0 if note is None else note.depth
    messages = "1 message" if depth == 1 else f"{depth} messages"
    return f"The author's note stands {f'{messages} before' if depth else 'at'} the end"


def _meant_for(view: View, model: str | None) -> str:
    info = view.model.info
    if model is None or info is None:
        return ""
    try:
        path = view.shelf.choose(model)
    except ModelError as error:
        return f"; it is meant for another model: {error}"
    return "" if path == Path(info.path) else f"; it is meant for another model: /model {one_line(model)}"


@command(
    "template",
    "Prompt template",
    "Choose the prompt template: model, chatml, plain, or a file in the templates folder.",
    "/template",
    "[NAME]",
    keys=("f8",),
    in_lines="Choose the prompt template; without NAME, list those there are.",
    after="preset",
    aliases=("/format", "/instruct"),
    needs="format",
    lets_go=("model",),
)
def template(view: View, name: str) -> None:
    session = view.session
    if not name:
        from exlchat.app.panels.template_sample import formats_there_are

        lines = [f"/template NAME chooses one of these; now it is {session.template or 'model'}:"]
        lines += [f"  {one}: {one_line(told, 100)}" for one, told in formats_there_are()]
        view.note("\n".join(lines))
        return
    view.model.check_template(name)
    session.choose_template(None if name == "model" else name)
    view.tell(f"The prompt template of this conversation is {name} from the next message on")
    if session.last_said is not None:
        ask_cost(view, "With it")

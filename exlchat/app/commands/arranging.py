"""Conversations in order: tags, folders, what stays on top, the archive, files. One of them, or several at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.list_history import ListChange
from exlchat.app.chat.list_order import FOLDER_MARK, MOST_TAGS, folder_of, tags_after
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.chat.store.conversations import StoreError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.app.view import View
    from exlchat.chat.model import ConversationSummary

command = partial(action.command, topic="Conversations")

PICTURES = (".png", ".charx", ".webp", ".jpg", ".jpeg")
"""Files of these cannot be anything but cards."""
_TITLE_CELLS = 60


# The open conversation


@command(
    "tag",
    "Tags",
    "Give this conversation tags, or take away those with a minus before them; alone, show them.",
    "/tag",
    "[TAG …]",
    when=lambda now: now.has_messages,
    is_typed=True,
    after="save",
    aliases=("/tags",),
)
def tag(view: View, typed: str) -> None:
    ident = view.session.require_open()
    if typed:
        tag_all(view, [ident], typed)
        return
    there = view.session.store.tags(ident)
    view.tell(_tags(there) or "This conversation has no tags; /tag work gives it one")


@command(
    "folder",
    "Folder",
    "Put this conversation into a folder of the list, or with - out of it; alone, say in which it is.",
    "/folder",
    "[NAME]",
    when=lambda now: now.has_messages,
    is_typed=True,
)
def folder(view: View, name: str) -> None:
    ident = view.session.require_open()
    if name:
        file_all(view, [ident], name)
        return
    there = folder_of(view.session.store.tags(ident))
    view.tell(f"In the folder {there}" if there else "In no folder; /folder Work puts it into one")


@command(
    "on-top",
    "Keep on top",
    "Keep this conversation at the head of the list, or with off no longer.",
    "/ontop",
    "[off]",
    when=lambda now: now.has_messages,
)
def on_top(view: View, off: str) -> None:
    pin_all(view, [view.session.require_open()], pinned=_on(off, "/ontop"))


@command(
    "archive",
    "Archive",
    "Take this conversation off the list, or with off put it back; /archived and /search still find it.",
    "/archive",
    "[off]",
    when=lambda now: now.has_messages,
)
def archive(view: View, off: str) -> None:
    archive_all(view, [view.session.require_open()], archived=_on(off, "/archive"))


command("archived", "Archived conversations", "List what is in the archive, and open one of it.", "/archived")


@command(
    "import",
    "Import conversations",
    "Read the conversations of a FILE (of exlchat, ChatGPT, claude.ai, SillyTavern and others), or a character card.",
    "/import",
    "FILE",
    is_typed=True,
)
def import_conversations(view: View, name: str) -> None:
    if not name:
        raise NotPossibleError("/import needs FILE, such as /import conversations.json")
    # No start needs them.
    from exlchat.app.chat.importing_files import import_file
    from exlchat.app.commands.speaking import card_from, keep_card
    from exlchat.chat.exchange.limits import ExchangeError
    from exlchat.chat.personas.persona import PersonaError

    path = paths.expanded(name)
    try:
        imported = import_file(path, view.session.store, lambda line: view.tell(line, warning=True))
    except ExchangeError as error:
        try:
            card = card_from(path)
        except PersonaError as no_card:
            raise NotPossibleError(str(no_card if path.suffix.lower() in PICTURES else error)) from None
        ident = keep_card(view, card)
        view.tell(f"{one_line(card.persona.name, 40)} is among the personas now; /persona {ident} has it speak")
        return
    if len(imported.ids) == 1:
        view.open_conversation(imported.ids[0])
    else:
        view.refresh_around()
    view.tell(imported.line)


# Of one, or several


def tag_all(view: View, idents: Sequence[str], typed: str) -> None:
    """Add the tags of a line to conversations; those with a minus before them are taken away."""
    words = [word.lstrip("#") for word in typed.replace(",", " ").split()]
    gone = {word[1:].lstrip("#") for word in words if word.startswith("-")}
    new = {word for word in words if word and not word.startswith("-")}
    if len(new) > MOST_TAGS:
        raise NotPossibleError(f"a conversation has {MOST_TAGS} tags at most; these are {len(new):,}")
    store = view.session.store
    done = _each(
        view,
        idents,
        lambda ident: store.set_tags(ident, tags_after(store.tags(ident), new, gone)),
        lambda ident: partial(store.set_tags, ident, store.tags(ident)),
        "Tags",
    )
    if done == 1 and len(idents) == 1:
        view.tell(_tags(store.tags(idents[0])) or "No tags any more")
    elif done:
        view.tell(f"{_many(done)}: {_tags(sorted(new))}{''.join(f' -{one}' for one in sorted(gone))}")


def file_all(view: View, idents: Sequence[str], name: str) -> None:
    """Put conversations into a folder; `-` takes them out of theirs."""
    wanted = "" if name == "-" else one_line(name.rstrip(FOLDER_MARK), 39)
    store = view.session.store

    def change(ident: str) -> None:
        kept = [one for one in store.tags(ident) if not one.endswith(FOLDER_MARK)]
        store.set_tags(ident, [*kept, f"{wanted}{FOLDER_MARK}"] if wanted else kept)

    if done := _each(view, idents, change, lambda ident: partial(store.set_tags, ident, store.tags(ident)), "Folders"):
        view.tell(f"{_many(done)} in the folder {wanted}" if wanted else f"{_many(done)} in no folder any more")


def pin_all(view: View, idents: Sequence[str], *, pinned: bool) -> None:
    store = view.session.store
    before = _those(view, lambda one: one.pinned)
    done = _each(
        view,
        idents,
        lambda ident: store.pin_conversation(ident, pinned),
        lambda ident: partial(store.pin_conversation, ident, ident in before),
        "Places",
    )
    if done:
        view.tell(f"{_many(done)} {'at the head of the list' if pinned else 'back in the order of days'}")


def archive_all(view: View, idents: Sequence[str], *, archived: bool) -> None:
    store = view.session.store
    before = _those(view, lambda one: one.archived)
    done = _each(
        view,
        idents,
        lambda ident: store.archive(ident, archived),
        lambda ident: partial(store.archive, ident, ident in before),
        "Places",
    )
    if done:
        view.tell(f"{_many(done)} {'in the archive; /archived lists it' if archived else 'back on the list'}")


def export_all(view: View, idents: Sequence[str], name: str) -> None:
    """Write conversations to one file, in the form that its name ends in; one that is there is never replaced."""
    from exlchat.app.chat.writing_files import write_conversations
    from exlchat.chat.exchange.limits import ExchangeError

    session = view.session
    trees = [session.unkept.in_tree(session.store.read_tree(ident)) for ident in idents]
    target = paths.expanded(name)
    try:
        write_conversations(target, trees)
    except ExchangeError as error:
        raise NotPossibleError(str(error).replace(", or replace it with --force", "")) from None
    view.tell(f"{_many(len(trees))} in {target}")


def delete_all(view: View, idents: Sequence[str]) -> None:
    """Delete conversations; one /undo brings all of them back."""
    was_open = view.session.conversation_id in idents
    if was_open:
        view.unsent.keep()
    titles, problem = view.session.delete_all(idents)
    if was_open:
        view.show_conversation()
    else:
        view.refresh_around()
    if problem:
        view.tell(problem, warning=True)
    if len(titles) == 1:
        view.tell(f"Deleted “{one_line(titles[0], _TITLE_CELLS)}”; /undo brings it back")
    elif titles:
        view.tell(f"Deleted {_many(len(titles))}; /undo brings them back")


def _each(
    view: View,
    idents: Sequence[str],
    change: Callable[[str], object],
    as_before: Callable[[str], Callable[[], object]],
    what: str,
) -> int:
    """How many could be changed; why others could not is one line.

    Args:
        as_before: asked before the change; has what it gives take that back.
        what: is as it was when that has been done.
    """
    back, problem = [], ""
    for ident in idents:
        try:
            undo = as_before(ident)
            change(ident)
            back.append(undo)
        except StoreError as error:
            problem = str(error)
    if back:
        view.session.list_history.add(ListChange(back, f"{what} of {_many(len(back))} are as they were"))
    if problem:
        view.tell(problem, warning=True)
    view.refresh_around()
    return len(back)


def _those(view: View, are: Callable[[ConversationSummary], bool]) -> set[str]:
    store = view.session.store
    return {one.id for one in (*store.list_conversations(), *store.list_conversations("archived")) if are(one)}


def _on(word: str, slash: str) -> bool:
    if word not in ("", "on", "off"):
        raise NotPossibleError(f"{slash} takes nothing or off, not {one_line(word, 20)}")
    return word != "off"


def _tags(tags: Sequence[str]) -> str:
    return one_line(" ".join(f"#{one}" for one in tags if not one.endswith(FOLDER_MARK)), 200)


def _many(conversations: int) -> str:
    return "1 conversation" if conversations == 1 else f"{conversations:,} conversations"


command(
    "mark-selected",
    "Mark",
    "Mark the conversation, or no longer; what is done next is done to all that are marked.",
    keys=("space",),
    place="sidebar",
    in_palette=False,
    after="open-selected",
)
command("tag-selected", "Tags", "Give tags, or take them away.", keys=("g",), place="sidebar", in_palette=False)
command("folder-selected", "Folder", "Put it into a folder.", keys=("f",), place="sidebar", in_palette=False)
command(
    "pin-selected",
    "On top",
    "Keep it at the head of the list, or no longer.",
    keys=("p",),
    place="sidebar",
    in_palette=False,
)
command("archive-selected", "Archive", "Take it off the list.", keys=("a",), place="sidebar", in_palette=False)
command("export-selected", "Export", "Write it to a file.", keys=("x",), place="sidebar", in_palette=False)

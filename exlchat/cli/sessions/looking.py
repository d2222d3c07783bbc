"""`exlchat sessions list|show|search|stats|check`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from exlchat.app.chat.finding import SHORT, conversation, day
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.chat.model import Message
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.repair.check_file import check_file
from exlchat.chat.speakers import char_of, label_of
from exlchat.chat.store.backup import backups
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.search import SearchHit
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import on_terminal, print_json, print_lines, print_text
from exlchat.untrusted.text import one_line

_LINE = 1000
_TAGS = 100
_EMPTY = "The conversation is empty."
_ALONE = 1, 1
"""The place of a message that has no alternatives."""


def run_list(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    rows = [row for row in store.list_conversations(typed.which) if typed.tag is None or typed.tag in row.tags]
    if typed.json:
        return print_json([asdict(row) for row in rows])
    lines = []
    for row in rows:
        tags = one_line(" ".join(f"#{tag}" for tag in row.tags), _TAGS)
        mark = "*" if row.pinned else " "
        line = f"{row.id[:SHORT]} {mark} {day(row.updated_at)} {row.message_count:5}  {row.title} {tags}"
        lines.append(line.rstrip())
    return print_lines(lines or ["There is no such conversation."])


def run_show(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """The branch that is shown, with n of m where there are alternatives; or a line a message of all branches."""
    ident = conversation(store, typed.id)
    tree = store.read_tree(ident)
    kept = [one for one in tree.messages if not one.deleted]
    places = store.places(ident)
    shown = {one.id for one in store.branch(tree.tip_id)}
    if typed.json:
        rows = [
            {**asdict(one), "shown": one.id in shown, "place": place, "of": of}
            for one in kept
            for place, of in [places.get(one.id, _ALONE)]
            if typed.tree or one.id in shown
        ]
        return print_json(
            {
                "id": tree.id,
                "title": tree.title,
                "tags": tree.tags,
                "pinned": tree.pinned,
                "archived": tree.archived,
                "tip_id": tree.tip_id,
                "messages": rows,
            }
        )
    if typed.tree:
        return print_lines(_tree_lines(kept, shown) or [_EMPTY])
    texts = [f"{_head(one, places.get(one.id, _ALONE))}\n{_said(one)}\n\n" for one in kept if one.id in shown]
    return print_text("".join(texts) or f"{_EMPTY}\n")


def run_search(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    """A line for each hit; what was found is underlined on a terminal."""
    # No list needs them.
    from exlchat.app.chat.found import search
    from exlchat.app.chat.session import NotPossibleError

    try:
        hits = search(store, " ".join(typed.text), typed.limit)
    except NotPossibleError as error:
        raise StoreError(str(error)) from None
    if typed.json:
        return print_json([asdict(hit) for hit in hits])
    lines = []
    for hit in hits:
        where = f"{hit.message_id[:SHORT]} {hit.role}" if hit.message_id else f"{'title':{SHORT}}"
        lines.append(f"{hit.conversation_id[:SHORT]} {day(hit.created_at)} {one_line(hit.title, 40)}")
        lines.append(f"    {where}: {_marked(hit)}")
    return print_lines(lines or ["Nothing was found."])


def run_stats(store: ConversationStore, typed: argparse.Namespace) -> ExitCode:
    counts = store.counts()
    copies = [str(file) for file in backups(store.path)] if store.path is not None else []
    if typed.json:
        return print_json({**counts, "file": str(store.path), "backups": copies})
    lines = [f"{name.replace('_', ' '):22} {value:>12,}" for name, value in counts.items()]
    return print_lines([f"{store.path}", *lines, *(f"backup: {copy}" for copy in copies)])


def run_check(path: Path, typed: argparse.Namespace) -> ExitCode:
    """What is wrong, a line each; the exit code is 1 while something is."""
    problems = check_file(path, repair=typed.repair)
    wrong = any(not problem.repaired for problem in problems)
    if typed.json:
        code = print_json([asdict(problem) for problem in problems])
    else:
        lines = [f"{'mended' if one.repaired else 'wrong'}: {one_line(one.text, _LINE)}" for one in problems]
        if wrong and not typed.repair:
            lines.append("exlchat sessions check --repair mends what can be mended, after a copy of the database")
        code = print_lines(lines or ["Nothing is wrong."])
    return ExitCode.ERROR if wrong and code == ExitCode.OK else code


def _head(one: Message, place: tuple[int, int]) -> str:
    told = [one.id[:SHORT], _who(one), day(one.created_at)]
    if place[1] > 1:
        told.append(f"{place[0]} of {place[1]}")
    told += [word for word, holds in (("pinned", one.pinned), ("cut", one.status == "partial")) if holds]
    return f"--- {' · '.join(told)}"


def _said(one: Message) -> str:
    """Thoughts first, each line of them behind a mark."""
    parts = answer_parts(one)
    thoughts = "".join(f"> {line}\n" for line in (parts.thinking or "").splitlines())
    return f"{thoughts}{parts.answer}"


def _tree_lines(kept: Sequence[Message], shown: set[str]) -> list[str]:
    lines = []
    for line in tree_lines(kept):
        one = line.message
        mark = "*" if one.id in shown else " "
        lines.append(f"{one.id[:SHORT]} {mark} {'  ' * line.depth}{_who(one)}: {line.text}")
    return lines


def _who(one: Message) -> str:
    """The role, and of a group the name of who gave the answer."""
    name = char_of(one)
    return one.role if name is None else f"{one.role} {label_of(name)}"


def _marked(hit: SearchHit) -> str:
    if not on_terminal():
        return hit.snippet
    shown, last = "", 0
    for first, end in hit.marks:
        shown += f"{hit.snippet[last:first]}[{hit.snippet[first:end]}]"
        last = end
    return shown + hit.snippet[last:]

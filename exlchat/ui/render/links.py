"""Where a link of a message really leads, and having the browser go there. No terminal library.

The address was written by a model: it is shown whole before anything is opened, and what cannot be told for certain can
only be copied.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from exlchat.ui.render.markdown.blocks import targets
from exlchat.ui.render.markdown.document import Document
from exlchat.ui.render.markdown.inline import bare_addresses
from exlchat.untrusted.sanitize import normalize_newlines, printable

_OPENED: Final = ("http", "https", "mailto")
_HOST: Final = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.]+\]")
_UNCERTAIN: Final = re.compile(r"[\s\\\ufffd\u2400-\u2421]")
"""Blanks, what browsers take for a slash, and what stands for a character that must not reach a terminal."""
_WITHIN_SECONDS: Final = 5
_CHILD: Final = """
import sys, webbrowser
try:
    browser = webbrowser.get()
except webbrowser.Error:
    sys.exit(3)
if getattr(browser, "name", "") in ("www-browser", "links", "elinks", "lynx", "w3m"):
    sys.exit(3)
sys.exit(0 if browser.open(sys.argv[1]) else 4)
"""


@dataclass(frozen=True, slots=True)
class Link:
    """A link as it is shown before it is opened.

    Args:
        target: the whole address, printable, in one line.
        remarks: what is worth knowing about it, a line each.
        can_open: whether it may be opened; else it can only be copied.
        host: the part of it that says whose it is; "" if there is none.
        host_at: where in `target` that begins.
    """

    target: str
    remarks: tuple[str, ...]
    can_open: bool
    host: str = ""
    host_at: int = 0


class OpenError(Exception):
    """Why an address could not be opened, in one line."""


def links_of(text: str, *, is_markdown: bool) -> list[str]:
    """Where the links of a message lead, each once: what is marked as one, and addresses that stand there as such."""
    if not is_markdown:
        return bare_addresses(printable(normalize_newlines(text)))
    document = Document()
    document.append(text)
    document.close()
    document.advance()
    return targets(document.closed)


def look_at(target: str) -> Link:
    shown = printable(normalize_newlines(target)).replace("\n", " ").replace("\t", " ")
    try:
        parts = urlsplit(shown)
        host, scheme = parts.netloc.rpartition("@")[2], parts.scheme.lower()
        port = parts.port
    except ValueError:
        return Link(shown, ("This is no valid address; it can only be copied",), False)
    if scheme not in _OPENED:
        return Link(shown, ("Only http, https and mailto are opened; this can only be copied",), False)
    if _UNCERTAIN.search(shown):
        return Link(shown, ("It has characters that no address has; it can only be copied",), False)
    if scheme == "mailto":
        return Link(shown, (), True)
    host = host.removesuffix(f":{port}")
    if not _HOST.fullmatch(host):
        return Link(shown, ("Whose address this is cannot be told; it can only be copied",), False)
    remarks = _about_host(host)
    if "@" in parts.netloc:
        remarks = (f"What stands before the @ is a user name; the host is {host}", *remarks)
    at = shown.index("//") + 2 + len(parts.netloc) - len(parts.netloc.rpartition("@")[2])
    return Link(shown, remarks, True, host, at)


def _about_host(host: str) -> tuple[str, ...]:
    remarks: list[str] = []
    labels = host.lower().split(".")
    read = ".".join(map(_as_read, labels))
    encoded = ".".join(map(_as_sent, labels))
    if read != host.lower():
        remarks.append(f"The host reads as {read}")
    if encoded != host.lower():
        remarks.append(f"The host's name for machines is {encoded}")
    for label in read.split("."):
        scripts = sorted({_script(letter) for letter in label if letter.isalpha()})
        if len(scripts) > 1:
            remarks.append(f"{label} mixes letters of {' and '.join(scripts)}: it may pose as another name")
        elif scripts not in ([], ["Latin"]):
            remarks.append(f"{label} is written in {scripts[0]} letters, some of which look like Latin ones")
    return tuple(remarks)


def _as_read(label: str) -> str:
    """A part of a host's name as browsers may show it."""
    if not label.startswith("xn--"):
        return label
    try:
        return printable(label[4:].encode("ascii").decode("punycode"))
    except UnicodeError:
        return label


def _as_sent(label: str) -> str:
    """A part of a host's name as it is looked up."""
    if label.isascii():
        return label
    return f"xn--{unicodedata.normalize('NFKC', label).encode('punycode').decode('ascii')}"


def _script(letter: str) -> str:
    return unicodedata.name(letter, "unknown").split(" ", 1)[0].capitalize()


def open_link(link: Link) -> None:
    """Have the browser open it. Takes a moment: not for the thread that draws.

    The browser is started by a process of its own, without this terminal, which it could write to.

    Raises:
        OpenError: there is no browser with a window of its own, or it did not start.
    """
    if not link.can_open:
        raise OpenError(f"{link.target} is not opened; c copies it")
    command = [sys.executable, "-I", "-c", _CHILD, link.target]
    null = subprocess.DEVNULL
    try:
        code = subprocess.run(
            command, stdin=null, stdout=null, stderr=null, start_new_session=True, timeout=_WITHIN_SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        # Some browsers are waited for until they are closed.
        return
    except OSError as error:
        raise OpenError(f"The browser could not be started: {error.strerror}; c copies the address") from None
    if code:
        why = "there is no browser with a window here" if code == 3 else "the browser did not start"
        raise OpenError(f"Not opened: {why}; c copies the address")

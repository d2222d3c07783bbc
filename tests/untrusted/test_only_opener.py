"""No file of a stranger is opened but by `untrusted/files.py`: the source is walked, and what is unknown fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import exlchat
from tests.untrusted.openings import openings

PACKAGE = Path(exlchat.__file__).parent
OPENER = "untrusted/files.py"

DATABASE = "the user's own database, which `database.py` has proved plain; SQLite opens by path alone"
LOCKED = "the same; opened for the lock that SQLite looks at"
TEMPORARY = "a file that this process has just made under a name of its own"
PACKAGED = "a file of this package"
KERNEL = "a file of the kernel's"
BUILT = "what this process has a compiler write into a new folder of its own"
NEW = "made here, and refused if it is there"
CALLER = "a file that a program which writes models for tests and benchmarks names"
NO_FILE = "opens no file"

KNOWN: dict[tuple[str, str, str], str] = {
    ("chat/store/backup.py", "back_up", "sqlite3.connect"): DATABASE,
    ("chat/store/backup.py", "back_up", "open"): TEMPORARY,
    ("chat/repair/check_values.py", "_parts", "sqlite3.connect"): "a database in memory",
    ("chat/store/database.py", "_opened", "sqlite3.connect"): DATABASE,
    ("chat/store/database.py", "_make", "os.open"): NEW,
    ("chat/repair/salvage.py", "_alone", "path.open"): LOCKED,
    ("chat/repair/salvage.py", "_written", "new.open"): TEMPORARY,
    ("chat/repair/salvage.py", "_linked", "shutil.copy2"): DATABASE,
    ("chat/repair/salvage.py", "_on_disk", "os.open"): "a folder",
    ("chat/exchange/llm_logs.py", "open_llm", "sqlite3.connect"): "proved plain a line before, and read only",
    ("chat/exchange/raw.py", "archive_members", "zipfile.ZipFile"): "given what `open_plain` has opened",
    ("chat/exchange/raw.py", "_member", "archive.open"): "a member of an archive",
    ("chat/personas/zip_members.py", "entries", "zipfile.ZipFile"): "given bytes",
    (
        "chat/prompt/formats/catalog.py",
        "BuiltIn.source",
        "(Path(__file__).parent / f'{self.name}.jinja').read_text",
    ): PACKAGED,
    ("engine/schedule/scheduler.py", "Scheduler.__init__", "self._sources.open"): NO_FILE,
    ("engine/schedule/shared_sources.py", "SharedSources.open", "self._ahead.open"): NO_FILE,
    ("engine/schedule/shared_sources.py", "SharedSources.open", "self._together.open"): NO_FILE,
    ("engine/schedule/shared_sources.py", "SharedSources.open", "self._own.open"): NO_FILE,
    ("engine/bench/measure.py", "MemoryProbe.peak", "Path('/proc/self/status').read_text"): KERNEL,
    ("engine/bench/measure.py", "_processor", "Path('/proc/cpuinfo').read_text"): KERNEL,
    ("engine/convert/output.py", "_to_disk", "os.open"): "a file or folder that this process has just made",
    (
        "engine/convert/text.py",
        "bundled_text",
        "resources.files('exlchat.engine.convert').joinpath('texts', f'{name}.txt.xz').read_bytes",
    ): PACKAGED,
    ("engine/convert/work.py", "_write", "open"): TEMPORARY,
    ("ui/render/avatar.py", "avatar", "Image.open"): "given bytes",
    ("engine/formats/exl2_writer.py", "write_model", "shutil.copyfile"): CALLER,
    ("engine/formats/gptq_writer.py", "write_layers", "shutil.copyfile"): CALLER,
    ("engine/weights/files.py", "open_weights", "safe_open"): "given the descriptor that `open_plain` has opened",
    (
        "engine/kv/disk/file.py",
        "_read_into",
        "path.open",
    ): "in a folder that is ours alone; proved plain before",
    ("engine/placement.py", "free_memory", "Path('/proc/meminfo').read_text"): KERNEL,
    ("engine/placement.py", "_statm", "Path('/proc/self/statm').read_text"): KERNEL,
    ("app/guide/facts.py", "_contents", "path.read_text"): PACKAGED,
    ("app/guide/lookup.py", "Lookup.__init__", "sqlite3.connect"): "a database in memory",
    ("ext/compiling.py", "compile_library", "log.open"): BUILT,
    ("ext/compiling.py", "_start", "job.output.open"): BUILT,
    ("ext/compiling.py", "_finish", "entry.job.output.read_bytes"): BUILT,
    ("ext/driver.py", "ask_driver", "ctypes.CDLL"): "the driver's own library, found by the system's linker",
    ("ext/pinned.py", "PinnedMemory.__init__", "ctypes.CDLL"): "the driver's own library, found by the system's linker",
    ("ext/pinned.py", "PinnedMemory.__init__", "mmap.mmap"): NO_FILE,
    ("ext/pinned.py", "PinnedMemory.__init__", "mmap"): NO_FILE,
    ("ext/library.py", "open_library", "ctypes.CDLL"): "code of our own: whoever can write it needs no pipe",
    ("ext/functions.py", "", "(SOURCES / HEADER).read_text"): PACKAGED,
    ("ext/library.py", "source_abi", "header.read_text"): PACKAGED,
    ("ext/record.py", "source_hash", "path.read_bytes"): PACKAGED,
    ("app/commands/code_files.py", "save_code", "path.open"): NEW,
    ("cli/doctor/facts.py", "card_on_bus", "(device / 'vendor').read_text"): KERNEL,
    ("cli/doctor/facts.py", "card_on_bus", "(device / 'class').read_text"): KERNEL,
    ("ui/terminal/standard_streams.py", "_abandon", "os.open"): "/dev/null",
    ("app/library/download.py", "_receive", "part.open"): "written, below a name of our own",
    ("ui/line/view.py", "LineView.open_conversation", "self.session.open"): NO_FILE,
    (
        "app/log.py",
        "_PrivateFile",
        "RotatingFileHandler",
    ): "its file is opened by `_open`, which takes `open_to_append`",
    ("app/chat/open_conversation.py", "OpenConversation.reload", "self.open"): NO_FILE,
    ("app/chat/open_conversation.py", "OpenConversation.save_anew", "self.open"): NO_FILE,
    ("app/chat/open_conversation.py", "OpenConversation._create", "self.open"): NO_FILE,
    ("app/chat/session.py", "ChatSession.open", "super().open"): NO_FILE,
    ("app/chat/writing_files.py", "write_file", "os.open"): NEW,
    ("app/chat/open_conversation.py", "OpenConversation.gather", "self.open"): NO_FILE,
    ("app/chat/tree_actions.py", "branch_off", "session.open"): NO_FILE,
    ("ui/tui/commands.py", "ScreenCommands._own_ways", "self._finding.open"): NO_FILE,
    (
        "ui/tui/commands.py",
        "ScreenCommands._sampling",
        "SamplingCommands(self._screen, self._settings.take_over).open",
    ): NO_FILE,
    ("ui/tui/finding.py", "ConversationFinder.open", "self._screen.find_bar.open"): NO_FILE,
    ("ui/tui/chat_view.py", "ChatView.open_conversation", "self.session.open"): NO_FILE,
    ("ui/tui/tab_commands.py", "ConversationTabs.show_beside", "self._screen.session.open"): NO_FILE,
    ("ui/tui/tab_commands.py", "ConversationTabs._go", "session.open"): NO_FILE,
    ("remote/http.py", "Http.connect", "connection.connect"): NO_FILE,
    ("remote/http.py", "Http._read", "self.connect"): NO_FILE,
    ("remote/http.py", "_first_there", "server.connect"): NO_FILE,
    ("remote/http.py", "_first_there", "last.connect"): NO_FILE,
    ("untrusted/worker.py", "serve", "os.open"): "/dev/null",
    ("untrusted/worker.py", "_confine", "open"): KERNEL,
}
"""Module, what is around it, what is written there -> why it needs no guard. Nothing that a stranger gives is here."""


def found() -> dict[tuple[str, str, str], str]:
    """Every opening of the package -> its place, for people."""
    places = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = file.relative_to(PACKAGE).as_posix()
        if module != OPENER:
            for one in openings(file.read_text(encoding="utf-8")):
                places[module, one.where, one.what] = f"{module}:{one.line}: {one.what} in {one.where}()"
    return places


def test_whatever_opens_a_file_is_the_opener_or_known_to_open_none_of_a_stranger() -> None:
    unknown = [place for key, place in found().items() if key not in KNOWN]
    assert unknown == [], "read it with exlchat.untrusted.files, or say in KNOWN why no stranger can have made it"


def test_nothing_is_known_that_is_not_there_any_more() -> None:
    assert sorted(KNOWN.keys() - found().keys()) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("open(path)", "open"),
        ("json.load(open(path))", "open"),
        ("path.open('rb')", "path.open"),
        ("Path(name).read_text()", "Path(name).read_text"),
        ("(folder / 'x').read_bytes()", "(folder / 'x').read_bytes"),
        ("list(map(Path.read_text, paths))", "Path.read_text"),
        ("os.open(path, 0)", "os.open"),
        ("io.open(path)", "io.open"),
        ("Tokenizer.from_file(path)", "Tokenizer.from_file"),
        ("safe_open(path, framework='np')", "safe_open"),
        ("np.load(path)", "np.load"),
        ("np.memmap(path)", "np.memmap"),
        ("torch.load(path)", "torch.load"),
        ("ZipFile(path)", "ZipFile"),
        ("zipfile.ZipFile(path)", "zipfile.ZipFile"),
        ("sqlite3.connect(path)", "sqlite3.connect"),
        ("connecting(path)", "connecting"),
        ("reader = open", "open"),
    ],
)
def test_one_that_is_planted_is_found(line: str, what: str) -> None:
    imported = (
        "import io, json, os, sqlite3, torch, zipfile\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from safetensors import safe_open\n"
        "from sqlite3 import connect as connecting\n"
        "from tokenizers import Tokenizer\n"
        "from zipfile import ZipFile\n"
    )
    source = f"{imported}\nclass Reader:\n    def read(self, path: Path) -> None:\n        {line}\n"
    assert [(one.where, one.what) for one in openings(source)] == [("Reader.read", what)]


def test_the_opener_itself_is_not_taken_for_one() -> None:
    source = (
        "from exlchat.untrusted import files\n"
        "from exlchat.untrusted.files import open_plain, read_text\n"
        "def read(path):\n"
        "    with open_plain(path) as file:\n"
        "        return read_text(path), files.read_bytes(path), tomllib.loads(file.read())\n"
    )
    assert openings(source) == []

"""Where source opens a file by its path: every reference to something that does, called or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

OURS = "exlchat"

LAST = frozenset(
    {
        "open",
        "read_text",
        "read_bytes",
        "from_file",
        "from_pretrained",
        "fromfile",
        "memmap",
        "mmap",
        "safe_open",
        "load_file",
        "connect",
        "CDLL",
        "PyDLL",
        "LoadLibrary",
        "ZipFile",
        "PyZipFile",
        "TarFile",
        "GzipFile",
        "BZ2File",
        "LZMAFile",
        "FileIO",
        "copyfile",
        "copytree",
        "copy2",
        "run_path",
        "getlines",
        "SourceFileLoader",
        "FileHandler",
        "RotatingFileHandler",
        "genfromtxt",
        "loadtxt",
        "read_file",
        "unpack_archive",
    }
)
"""Names that open files, whatever they belong to."""

DOTTED = frozenset({"numpy.load", "torch.load", "shutil.copy", "shutil.move", "fileinput.input", "fileinput.FileInput"})
"""Those whose last part alone would mean other things too."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One reference.

    Args:
        where: of the functions and classes around it, "" at the top of a module.
        what: as written, such as `path.read_text`.
        line: in its module.
    """

    where: str
    what: str
    line: int


def openings(source: str) -> list[Opening]:
    """All in a module, but for what the package itself offers under the same names."""
    return list(_Walk().of(ast.parse(source)))


@dataclass
class _Walk:
    around: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Names of the module -> what they were imported from, or `OURS` for what it defines itself."""

    def of(self, module: ast.Module) -> Iterator[Opening]:
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                self.origins |= {one.asname or one.name.partition(".")[0]: _origin(one) for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                self.origins |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        # A function of a module, not a method: that is reached through its object alone.
        self.origins |= {one.name: OURS for one in module.body if isinstance(one, ast.FunctionDef)}
        yield from self._inside(module)

    def _inside(self, node: ast.AST) -> Iterator[Opening]:
        for child in _children(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named:
                self.around.append(child.name)
            if isinstance(child, ast.Name | ast.Attribute) and self._opens(child):
                yield Opening(".".join(self.around), ast.unparse(child), child.lineno)
            yield from self._inside(child)
            if named:
                self.around.pop()

    def _opens(self, node: ast.Name | ast.Attribute) -> bool:
        full = self._resolved(node)
        if full.partition(".")[0] == OURS:
            return False
        return full.rpartition(".")[2] in LAST or full in DOTTED

    def _resolved(self, node: ast.expr) -> str:
        """`np.load` -> `numpy.load`; of what is no chain of names only the last part."""
        if isinstance(node, ast.Attribute):
            return f"{self._resolved(node.value)}.{node.attr}"
        return self.origins.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations, which name types alone."""
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST))


def _origin(one: ast.alias) -> str:
    return one.name if one.asname else one.name.partition(".")[0]

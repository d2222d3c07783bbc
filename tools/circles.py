"""Tells each circle of files that import each other, imports for types alone included: `python -m tools.circles`."""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import grimp


def circles(package: str) -> list[list[str]]:
    """A path around each circle there is, one for files that are in several."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    imported = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    found = []
    while True:
        try:
            TopologicalSorter(imported).prepare()
        except CycleError as error:
            path = error.args[1]
            found.append(path)
            for module in path:
                imported[module] -= set(path)
        else:
            return found


def main() -> int:
    """A line for each circle; the exit code."""
    found = circles("exlchat")
    for path in found:
        sys.stdout.write(" -> ".join(reversed(path)) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The Python modules of the packages as their source shows them: imports, and lengths of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("engine_core", "frontend", "worker", "client")


def source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    """Return a module's name without "splitserve.", a package's own for its __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path) -> set[str]:
    """Return what a file imports anywhere in it, also inside functions and TYPE_CHECKING blocks.

    `from a import b` is both a and a.b, as either may be the module.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def import_graph(packages: tuple[str, ...] = PACKAGES) -> dict[str, set[str]]:
    """Return the modules of ours that each module imports; a package itself is not imported by that."""
    files = {module_name(path): path for package in packages for path in source_files(package)}
    modules = {name for name, path in files.items() if path.name != "__init__.py"}
    return {
        name: {imported.removeprefix("splitserve.") for imported in imported_names(path)} & (modules - {name})
        for name, path in files.items()
    }


def circles(graph: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """Return the groups of modules of which each imports, over others, every other one; sorted."""
    reach = {name: reachable(graph, name) for name in graph}
    return {
        tuple(sorted({other for other in reach[name] if name in reach[other]}))
        for name in graph
        if name in reach[name]
    }


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the nodes that edges lead to from one, itself only over a circle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def class_lines(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each class of a file, by its full name, with the lines it has."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            yield f"{module_name(path)}.{node.name}", node.end_lineno - node.lineno + 1

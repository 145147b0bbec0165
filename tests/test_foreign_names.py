"""No module reaches for a private name of another library, but for one adapter per library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import PACKAGES

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OWN = "splitserve"


def is_private(name: str) -> bool:
    """Whether some part of a dotted name is private; dunder names are Python's own protocol."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name that each import binds, and what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text, "" where it does not begin with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def private_names(tree: ast.Module) -> set[str]:
    """Private names of other libraries that a module imports, or reaches through what it has imported."""
    known = sys.stdlib_module_names | {OWN}
    foreign = {bound: full for bound, full in imports(tree) if full.split(".")[0] not in known}
    found = {full for full in foreign.values() if is_private(full)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = dotted(node).partition(".")
            if first in foreign and is_private(rest):
                found.add(f"{foreign[first]}.{rest}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_uses_public_names_of_other_libraries(path: Path) -> None:
    assert private_names(ast.parse(path.read_text())) == set()


def test_a_subclass_of_a_foreign_class_calls_no_private_method_outside_its_adapter() -> None:
    """uvicorn's are the only ones: `_unset_keepalive_if_required()` and `_start_asgi_task()`."""
    naming = {
        path.name
        for path in MODULES
        if "_start_asgi_task" in path.read_text() or "_unset_keepalive_if_required" in path.read_text()
    }
    assert naming == {"uvicorn_adapter.py"}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from torch._C import x", "torch._C.x"),
        ("from starlette import _utils", "starlette._utils"),
        ("import torch._dynamo", "torch._dynamo"),
        ("import torch.distributed as dist\ndist.distributed_c10d._set_pg_timeout(1)",
         "torch.distributed.distributed_c10d._set_pg_timeout"),
    ],
)  # fmt: skip
def test_private_names_are_found(source: str, name: str) -> None:
    assert name in private_names(ast.parse(source))

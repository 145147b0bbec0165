"""Every test can fail, and `make test` has some of every room.

A test can fail if it asserts, expects an error, or calls a helper of the tests that does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.halves import MARK, is_left_out

ROOT = Path(__file__).resolve().parent
# Calls that fail a test, by the end of their names: pytest's, and the assert_... of torch, numpy and mocks.
FAILING = ("pytest.raises", "pytest.warns", "pytest.fail")
# A mark that is not called by its whole name.
OTHER_NAMES = re.compile(
    r"^(from pytest import .*\bmark\b|import pytest as |from .* import .*\bpytestmark\b)", re.MULTILINE
)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """What the functions of a test file do.

    Attributes:
        asserting: names of functions, and of classes' methods, that check something themselves.
        calls: what each function calls, and which fixtures it asks for, by bare name.
        imports: files of tests that it imports from, and the conftest.py files that it gets fixtures from.
    """

    asserting: set[str] = field(default_factory=set)
    calls: dict[str, set[str]] = field(default_factory=dict)
    imports: set[Path] = field(default_factory=set)


def functions(tree: ast.AST) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def called_names(function: FunctionNode) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
    yield from (argument.arg for argument in function.args.args)


def checks(function: FunctionNode) -> bool:
    """Whether a function itself can fail a test."""
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    raised = (
        ast.unparse(node.exc) for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc
    )
    if any(error.startswith("AssertionError") for error in raised):
        return True
    return any(name in FAILING or bare(name).startswith("assert_") for name in called_names(function))


def bare(name: str) -> str:
    return name.rpartition(".")[2]


def imported_files(path: Path, tree: ast.AST) -> set[Path]:
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    files = {ROOT.parent / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.")}
    conftests = {folder / "conftest.py" for folder in path.parents if folder.is_relative_to(ROOT)}
    return {file for file in files | conftests if file.exists() and file != path}


@cache
def read(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    module = Module(imports=imported_files(path, tree))
    for function in functions(tree):
        module.calls.setdefault(function.name, set()).update(map(bare, called_names(function)))
        if checks(function):
            module.asserting.add(function.name)
    return module


@cache
def reachable(path: Path) -> frozenset[Path]:
    """The file and those that it imports, directly or not."""
    found, open_files = set(), [path]
    while open_files:
        file = open_files.pop()
        if file not in found:
            found.add(file)
            open_files += read(file).imports
    return frozenset(found)


def unchecked(path: Path) -> list[str]:
    """Names of tests that neither check nor reach a helper, in this file or one it imports, that does."""
    modules = [read(file) for file in reachable(path)]
    asserting = set().union(*(module.asserting for module in modules))
    calls: dict[str, set[str]] = {}
    for module in modules:
        for name, called in module.calls.items():
            calls[name] = calls.get(name, set()) | called
    while added := {name for name, called in calls.items() if called & asserting} - asserting:
        asserting |= added
    own = read(path)
    return [
        name
        for name, called in own.calls.items()
        if name.startswith("test_") and name not in own.asserting and not called & asserting
    ]


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("test_*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_test_can_fail(path: Path) -> None:
    assert unchecked(path) == []


def test_a_test_without_a_check_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(
        "def helper():\n    assert 1\n"
        "def outer():\n    helper()\n"
        "def test_calls_it():\n    outer()\n"
        "def test_expects():\n    with pytest.raises(ValueError):\n        f()\n"
        "async def test_only_runs():\n    await f()\n"
    )
    assert unchecked(path) == ["test_only_runs"]


def is_slow(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "slow" for part in ast.walk(node))


def has_quick_tests(path: Path) -> bool:
    """Whether `make test`, which leaves out what is marked slow, runs something of a file."""
    tree = ast.parse(path.read_text())
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and is_file_mark(node)]
    if any(map(is_slow, marks)):
        return False
    tests = [function for function in functions(tree) if function.name.startswith("test_")]
    return any(not any(map(is_slow, test.decorator_list)) for test in tests)


def is_file_mark(node: ast.Assign) -> bool:
    return [ast.unparse(target) for target in node.targets] == ["pytestmark"]


@pytest.mark.parametrize(
    "room", sorted({path.parent for path in ROOT.rglob("test_*.py")}), ids=lambda room: room.name
)
def test_every_room_has_tests_that_are_not_slow(room: Path) -> None:
    assert any(map(has_quick_tests, room.glob("test_*.py")))


FILES = {
    "none": "def test_it(): pass\n",
    "some": "pytestmark = pytest.mark.slow\n\n@pytest.mark.system\ndef test_it(): pass\n",
    "one case": "CASES = [pytest.param(1, marks=pytest.mark.system)]\n",
    "all": "pytestmark = pytest.mark.system\n",
    "all, in a list": "pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.system,\n]\n",
}


@pytest.mark.parametrize(
    ("expression", "left_out"),
    [("system", {"none"}), ("not system", {"all", "all, in a list"}), ("not slow", set()), ("", set())],
)
def test_a_file_is_left_out_if_nothing_of_it_is_asked_for(
    tmp_path: Path, expression: str, left_out: set[str]
) -> None:
    path = tmp_path / "test_x.py"
    found = set()
    for name, text in FILES.items():
        path.write_text(text)
        if is_left_out(path, expression):
            found.add(name)
    assert found == left_out


def test_no_file_gets_the_mark_of_system_tests_in_another_way() -> None:
    """What does not name it would be left out: a mark that is imported, or set by a fixture's file."""
    others = [path for path in ROOT.rglob("*.py") if not path.name.startswith("test_")]
    assert [path.name for path in others if MARK in path.read_text() and path.name != "halves.py"] == []
    tests = ROOT.rglob("test_*.py")
    assert [path.name for path in tests if OTHER_NAMES.search(path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    ["from pytest import fixture, mark", "import pytest as pt", "from tests.system.test_x import pytestmark"],
)
def test_other_names_of_marks_are_found(line: str) -> None:
    assert OTHER_NAMES.match(line)

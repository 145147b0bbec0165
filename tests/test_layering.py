"""The import rules of docs/architecture.md and the sizes of classes and folders, read from the source.

The rules themselves stand in tests/rooms.py; importing is checked in fresh interpreters, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import (
    AGAINST_THE_TABLE,
    MAX_CLASS_LINES,
    MAX_FILES,
    ROOMS,
    SHARED,
)
from tests.source_tree import (
    PACKAGES,
    ROOT,
    circles,
    class_lines,
    import_graph,
    imported_names,
    module_name,
    source_files,
)

FORBIDDEN = {
    "engine_core": {
        *("torch", "transformers", "fastapi", "ray"),
        *("splitserve.frontend", "splitserve.worker", "splitserve.client"),
    },
    "frontend": {"torch", "transformers", "splitserve.worker", "splitserve.client", "ray"},
    "worker": {"splitserve.frontend", "splitserve.client", "transformers", "fastapi"},
    "client": {"torch", "transformers", "splitserve.frontend", "splitserve.worker", "fastapi", "ray"},
}
# What one room may import all the same.
OF_A_ROOM = {"worker.generic": {"transformers"}}
UNSAFE_DECODERS = {"pickle", "cloudpickle", "marshal", "dill", "shelve"}
# How modules of ours may not be imported: the folders stand at the top of the repository, too.
OUTSIDE = set(PACKAGES)


def forbidden_imports(package: str, names: set[str], room: str = "") -> set[str]:
    """Return what nothing in a package may import, but for what its room may."""
    allowed = OF_A_ROOM.get(f"{package}.{room}", set())
    forbidden = (FORBIDDEN[package] - allowed) | UNSAFE_DECODERS | OUTSIDE
    return {name for name in names if {name, *parents(name)} & forbidden}


def parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def package_and_room(module: str) -> tuple[str, str]:
    package, _dot, rest = module.partition(".")
    return package, rest.partition(".")[0]


def is_allowed(module: str, imported: str) -> bool:
    """Whether the table lets a module import another."""
    package, room = package_and_room(module)
    other_package, other_room = package_and_room(imported)
    if package == other_package:
        return room == other_room or other_room in ROOMS[package].get(room, "").split()
    return other_package == "engine_core" and other_room in SHARED.get(package, "").split()


def against_the_table(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    return {
        (module, other)
        for module, others in graph.items()
        for other in others
        if not is_allowed(module, other)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_nothing_forbidden(package: str) -> None:
    files = source_files(package)
    assert files
    modules = {module_name(path): imported_names(path) for path in files}
    bad = {
        module: forbidden_imports(package, names, package_and_room(module)[1])
        for module, names in modules.items()
    }
    for module, other in AGAINST_THE_TABLE:
        bad[module] = {name for name in bad.get(module, ()) if not name.startswith(f"splitserve.{other}")}
    assert {module: names for module, names in bad.items() if names} == {}


def test_a_forbidden_import_is_noticed_inside_a_function(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    import torch.nn\n    from splitserve import worker\n    import engine_core.errors\n"
    )
    found = forbidden_imports("frontend", imported_names(path))
    assert found == {"torch.nn", "splitserve.worker", "engine_core.errors"}


def test_one_room_alone_may_import_transformers() -> None:
    assert forbidden_imports("worker", {"transformers"}, "generic") == set()
    assert forbidden_imports("worker", {"transformers"}, "models") == {"transformers"}


def test_importing_a_worker_loads_no_transformers() -> None:
    code = "import sys, splitserve.worker.cli\nsys.exit('loaded' if 'transformers' in sys.modules else 0)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_a_line_and_every_line_a_room(package: str) -> None:
    rooms = {package_and_room(module_name(path))[1] for path in source_files(package)} - {""}
    assert rooms == set(ROOMS[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_leads_from_the_top_to_the_bottom(package: str) -> None:
    lower: set[str] = set()
    for room, imported in ROOMS[package].items():
        assert set(imported.split()) <= lower, f"{room} may import a room that is not below it"
        lower.add(room)


def test_a_room_imports_only_what_its_line_allows() -> None:
    found = against_the_table(import_graph())
    assert found - AGAINST_THE_TABLE.keys() == set()
    assert AGAINST_THE_TABLE.keys() - found == set(), "an exception that nobody needs any more"


def test_an_import_upwards_or_of_a_private_room_is_noticed() -> None:
    graph = {
        "engine_core.ipc.codec": {"engine_core.scheduler.running", "engine_core.errors"},
        "frontend.app": {"engine_core.engine.core", "engine_core.ipc.codec", "frontend.config"},
        "worker.ops.cpu": {"frontend.config", "worker.ops.pack"},
    }
    assert against_the_table(graph) == {
        ("engine_core.ipc.codec", "engine_core.scheduler.running"),
        ("frontend.app", "engine_core.engine.core"),
        ("worker.ops.cpu", "frontend.config"),
    }


def test_no_modules_import_each_other() -> None:
    assert circles(import_graph()) == set()


def test_a_circle_of_any_length_is_noticed() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == {("a", "b", "c"), ("d", "e")}


def test_classes_are_short_enough_to_have_one_owner() -> None:
    files = [path for package in PACKAGES for path in source_files(package)]
    lines = dict(pair for path in files for pair in class_lines(path))
    assert {name for name, count in lines.items() if count > MAX_CLASS_LINES} == set()


def test_folders_are_small_enough_to_be_one_room() -> None:
    folders = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    counts = {module_name(folder / "__init__.py"): len(list(folder.glob("*.py"))) - 1 for folder in folders}
    assert {name for name, count in counts.items() if count > MAX_FILES} == set()


@pytest.mark.parametrize("package", ["engine_core", "frontend", "client"])
def test_importing_every_module_loads_no_torch(package: str) -> None:
    modules = [
        f"splitserve.{module_name(path)}"
        for path in source_files(package)
        if path.name not in ("__init__.py", "__main__.py")
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr

"""The import rules of docs/architecture.md, read from the source and checked in fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = tuple(
    f"splitserve.engine_core.{name}" for name in ("ipc", "sampling_params", "config", "errors", "checkpoint")
)
# How a child process is started so that it never outlives its parent (the offline LLM starts an engine-core);
# how every command reads flags, and how it and every call word their errors.
ALSO_SHARED = {
    "frontend": tuple(
        f"splitserve.engine_core.{name}"
        for name in ("process", "parser", "flag_values", "near_names", "file_limit")
    ),
    "worker": (),
}
PACKAGES = ("engine_core", "frontend", "worker")
# How modules of ours may not be imported: the folders stand at the top of the repository, too.
OUTSIDE = set(PACKAGES)
FORBIDDEN = {
    "engine_core": {"torch", "transformers", "splitserve.frontend", "splitserve.worker", "fastapi", "ray"},
    "frontend": {"torch", "transformers", "splitserve.worker", "ray"},
    "worker": {"splitserve.frontend", "transformers", "fastapi"},
}
UNSAFE_DECODERS = {"pickle", "cloudpickle", "marshal", "dill", "shelve"}


def source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """All modules a file imports anywhere in it, also inside functions and TYPE_CHECKING blocks."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module in ("splitserve", "splitserve.engine_core"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(package: str, modules: set[str]) -> set[str]:
    forbidden = FORBIDDEN[package] | UNSAFE_DECODERS | OUTSIDE
    bad = {module for module in modules if {module, *parents(module)} & forbidden}
    if package != "engine_core":
        inner = {module for module in modules if module.startswith("splitserve.engine_core.")}
        bad |= {module for module in inner if not module.startswith(SHARED + ALSO_SHARED.get(package, ()))}
    return bad


def parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_table_allows(package: str) -> None:
    files = source_files(package)
    assert files
    bad = {str(path.relative_to(ROOT)): violations(package, imported_modules(path)) for path in files}
    assert {path: modules for path, modules in bad.items() if modules} == {}


def test_the_rule_itself_notices_a_violation(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    from splitserve.engine_core.engine import EngineCore\n    import torch.nn\n"
        "    from splitserve import worker\n    import engine_core.errors\n"
    )
    found = violations("frontend", imported_modules(path))
    assert found == {"splitserve.engine_core.engine", "torch.nn", "splitserve.worker", "engine_core.errors"}


@pytest.mark.parametrize("package", ["engine_core", "frontend"])
def test_importing_every_module_loads_no_torch(package: str) -> None:
    modules = [
        "splitserve." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
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

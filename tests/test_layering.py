"""The import rules of docs/architecture.md, read from the source and checked in fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ("engine_core.ipc", "engine_core.sampling_params", "engine_core.config", "engine_core.errors")
# How a child process is started so that it never outlives its parent (the offline LLM starts an engine-core);
# how every command reads flags, and how it and every call word their errors. What a checkpoint says is read
# in one place for all.
ALSO_SHARED = {
    "frontend": (
        "engine_core.process",
        "engine_core.parser",
        "engine_core.flag_values",
        "engine_core.near_names",
        "engine_core.checkpoint",
        "engine_core.file_limit",
    ),
    "worker": ("engine_core.checkpoint",),
}
PACKAGES = ("engine_core", "frontend", "worker")
FORBIDDEN_ROOTS = {
    "engine_core": {"torch", "transformers", "frontend", "worker", "fastapi", "ray"},
    "frontend": {"torch", "transformers", "worker", "ray"},
    "worker": {"frontend", "transformers", "fastapi"},
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
            if node.module == "engine_core":
                found |= {f"engine_core.{alias.name}" for alias in node.names}
    return found


def violations(package: str, modules: set[str]) -> set[str]:
    bad = {module for module in modules if module.split(".")[0] in FORBIDDEN_ROOTS[package] | UNSAFE_DECODERS}
    if package != "engine_core":
        inner = {module for module in modules if module.startswith("engine_core.")}
        bad |= {module for module in inner if not module.startswith(SHARED + ALSO_SHARED.get(package, ()))}
    return bad


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_the_table_allows(package: str) -> None:
    files = source_files(package)
    assert files
    bad = {str(path.relative_to(ROOT)): violations(package, imported_modules(path)) for path in files}
    assert {path: modules for path, modules in bad.items() if modules} == {}


def test_the_rule_itself_notices_a_violation(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "def f():\n    from engine_core.scheduler.scheduler import Scheduler\n    import torch.nn\n"
    )
    assert violations("frontend", imported_modules(path)) == {"engine_core.scheduler.scheduler", "torch.nn"}


@pytest.mark.parametrize("package", ["engine_core", "frontend"])
def test_importing_every_module_loads_no_torch(package: str) -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
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

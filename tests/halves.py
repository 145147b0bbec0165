"""Which test files have nothing of what `pytest -m system` or `pytest -m 'not system'` asks for?

Importing all test files and the libraries that they are about takes as long as many of the tests.
"""

from __future__ import annotations

import ast
from pathlib import Path

MARK = "pytest.mark.system"


def is_left_out(path: Path, mark_expression: str) -> bool:
    """Whether a test file need not be imported for an expression of -m; of others than these two all are."""
    if mark_expression == "system":
        return MARK not in path.read_text()
    return mark_expression == "not system" and _is_all_system(path.read_text())


def _is_all_system(text: str) -> bool:
    """Whether the mark is on the file, rather than on some of its tests."""
    return MARK in text and any(
        ast.unparse(node.targets[0]) == "pytestmark" and MARK in ast.unparse(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
    )

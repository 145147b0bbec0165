"""Do the examples of README.md that talk to the server print what stands beside them?"""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.system.processes import Server

pytestmark = pytest.mark.system

README = Path(__file__).parents[2] / "README.md"
SHOWN = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)


def test_the_answers_shown_are_those_of_the_demo_model(server: Server) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    examples = [block for block in blocks if "client" in block]
    shown = [line for block in examples for line in SHOWN.findall(block)]
    assert len(shown) >= 2
    names: dict[str, object] = {}
    printed = StringIO()
    with redirect_stdout(printed):
        for block in examples:
            exec(block.replace("http://127.0.0.1:8000/v1", server.base_url), names)
    assert printed.getvalue().splitlines() == ["The capital of France is Paris.", *shown]

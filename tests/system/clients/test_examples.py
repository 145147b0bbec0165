"""The examples of docs/clients.md, each as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.clients.weather import INSTRUCTOR
from tests.system.processes import ROOT, Server

pytestmark = [pytest.mark.system, pytest.mark.slow]

ADDRESS = "http://127.0.0.1:8000"
BEGINNING, *EXAMPLES = re.findall(
    r"(?:## ([\w-]+)\n\n)?```python\n(.*?)```", (ROOT / "docs" / "clients.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize(("library", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_runs(server: Server, tmp_path: Path, library: str, code: str) -> None:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if library == "instructor":
        env["PYTHONPATH"] = str(INSTRUCTOR)
    assert ADDRESS in code
    program = tmp_path / "example.py"
    program.write_text(BEGINNING[1] + code.replace(ADDRESS, server.url))
    ran = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    if "ModuleNotFoundError" in ran.stderr:
        pytest.skip(f"{library} is not installed")
    assert ran.returncode == 0, ran.stderr
    assert "city=" in ran.stdout

"""In a folder of a user's own, where files are called as ours are in the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.system.processes import serve_command, wait_all_ready

pytestmark = [pytest.mark.system, pytest.mark.slow]

THEIRS = "raise SystemExit('a file of the user was run')"
SCRIPT = """
from splitserve import LLM, SamplingParams
with LLM(use_tqdm=False) as llm:
    print(len(llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a `worker.py`, and with packages `frontend` and `engine_core`."""
    for package in ("frontend", "engine_core"):
        (tmp_path / package).mkdir()
        for name in ("__init__", "cli", "errors"):
            (tmp_path / package / f"{name}.py").write_text(THEIRS)
    for name in ("worker", "config", "torch", "zmq"):
        (tmp_path / f"{name}.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_finds_the_llm_class_and_its_engine(theirs: Path) -> None:
    # A script's own folder comes first in its path: what it calls as a dependency of ours is called, it gets.
    for name in ("torch", "zmq"):
        (theirs / f"{name}.py").unlink()
    script = theirs / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "3", done.stderr


def test_the_server_starts_and_answers(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    with serve_command(theirs / "serve.log", cwd=theirs) as (url, process):
        wait_all_ready(url, 1, process)
        body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 3

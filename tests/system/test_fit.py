"""`--fit` as operators run it: a report, an exit code, and nothing that stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.processes import ROOT, START_TIMEOUT_S

pytestmark = pytest.mark.system


def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"splitserve.engine_core.{module}", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )


def test_serve_says_what_the_model_takes_and_starts_nothing() -> None:
    ended = run("launcher.cli", "serve", "--fit", "--tensor-parallel-size", "2", "--log-level", "warning")
    assert ended.returncode == 0, ended.stderr
    assert "LlamaForCausalLM, 4 M parameters, bfloat16, on cpu, each of 2 workers" in ended.stdout
    assert "it fits" in ended.stdout
    assert "listening" not in ended.stderr


def test_a_cache_that_does_not_fit_is_told_by_the_exit_code() -> None:
    ended = run("cli", "--fit", "--kv-cache-memory-bytes", "1T")
    assert ended.returncode == 3, ended.stderr
    assert "it does not fit   1024.0 GiB are needed" in ended.stdout


def test_made_up_workers_are_not_asked() -> None:
    ended = run("cli", "--fit", "--executor", "simulated")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--fit must be left out with --executor simulated" in ended.stderr

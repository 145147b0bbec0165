"""The guided search changes cases without breaking their form, and runs where its package is installed."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.fuzz.case import Case
from tests.fuzz.guided import MAX_PIECES, decode, mutate_case
from tests.fuzz.targets.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_no_case_is_an_empty_one() -> None:
    assert decode(b"\xc1") == decode(b"\x01") == []
    assert decode(msgspec.msgpack.encode([b"a", b""])) == [b"a", b""]


def test_cases_stay_short_and_get_some_pieces() -> None:
    target, rng = CATALOGUE["worker-frames"].make(), random.Random(3)
    case: Case = []
    sizes = set()
    for _ in range(400):
        case = mutate_case(target, rng, case)
        sizes.add(len(case))
    assert min(sizes) >= 1
    assert max(sizes) == MAX_PIECES


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_a_search_of_a_second_finds_branches() -> None:
    command = [sys.executable, "-m", "tests.fuzz.guided", "model-files", "--seconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "NEW" in done.stderr

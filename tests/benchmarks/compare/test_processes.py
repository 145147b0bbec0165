"""Processes: families are found, counted, paused and ended whole."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.compare.processes import EngineError, EngineProcess, cpu_s, machine_cpu_s, pids, pss_bytes
from tests.engine_core.processes import wait_ended

# Says its child's id, and ends when it is told to; the child never does by itself.
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
sys.stdin.read()
"""


def family(tmp_path: Path) -> tuple[EngineProcess, int]:
    """Start a process with a child; return it and the child's id."""
    process = EngineProcess([sys.executable, "-c", FAMILY], {}, tmp_path / "log", pausable=True, pipes=True)
    return process, int(process.stdout.readline())


def test_closing_ends_children_that_their_parent_left_behind(tmp_path: Path) -> None:
    process, child = family(tmp_path)
    assert pids(process.pid) == [process.pid, child]
    orphan = psutil.Process(child)
    process.close()
    assert wait_ended([orphan], 10) == []
    with pytest.raises(EngineError, match="log"):
        process.check_alive()


def test_pausing_stops_the_whole_family_and_a_paused_one_can_be_closed(tmp_path: Path) -> None:
    process, child = family(tmp_path)
    both = [psutil.Process(process.pid), psutil.Process(child)]
    process.pause()
    until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in both))
    process.resume()
    until(lambda: all(one.status() == psutil.STATUS_SLEEPING for one in both))
    process.pause()
    process.close()
    assert wait_ended(both, 10) == []
    # It went on, saw the end of its stdin, and ended by itself.
    with pytest.raises(EngineError, match="code 0"):
        process.check_alive()


def until(condition: Callable[[], bool]) -> None:
    """Look until a condition holds: a signal arrives when its process next runs."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end


# Has little memory in common with others: where they come and go, each one's part of that changes.
HOLDER = """
import sys
blocks = [print(flush=True)]
for line in sys.stdin:
    blocks.append(bytearray(b"x") * (50 << 20))
    print(flush=True)
"""


def test_memory_of_a_process_is_seen(tmp_path: Path) -> None:
    process = EngineProcess([sys.executable, "-c", HOLDER], {}, tmp_path / "log", pausable=False, pipes=True)
    process.stdout.readline()
    before = pss_bytes(process.pid)
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()
    grown = pss_bytes(process.pid) - before
    process.close()
    assert 40 << 20 < grown < 70 << 20


def test_cpu_of_this_process_is_seen() -> None:
    assert 0 < cpu_s(os.getpid()) < machine_cpu_s()


def test_the_environment_is_added_and_the_output_logged(tmp_path: Path) -> None:
    code = "import os; print(os.environ['ADDED'], os.environ['PATH'])"
    process = EngineProcess([sys.executable, "-c", code], {"ADDED": "yes"}, tmp_path / "log", pausable=False)
    psutil.Process(process.pid).wait(30)
    process.close()
    assert (tmp_path / "log").read_text().startswith(f"yes {os.environ['PATH']}")

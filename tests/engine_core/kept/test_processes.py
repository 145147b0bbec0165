"""A pid names a process only together with its start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from splitserve.engine_core.kept.processes import (
    ProcessName,
    has_ended,
    is_stopped,
    kill_processes,
    name_process,
    open_process,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Waits until its input ends, with a name that would mislead a reader of /proc/PID/stat."""
    code = "import sys; open('/proc/self/comm', 'w').write(') 0 Z ('); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as popen:
        yield popen
        popen.kill()


def test_a_running_process_is_found_by_its_name(child: subprocess.Popen[bytes]) -> None:
    name = name_process(child.pid)
    assert name.start_ticks > 0
    pidfd = open_process(name)
    assert pidfd >= 0
    assert not has_ended(pidfd)
    os.close(pidfd)


def test_a_process_that_has_the_pid_by_now_is_neither_taken_nor_killed(
    child: subprocess.Popen[bytes],
) -> None:
    name = name_process(child.pid)
    other = ProcessName(name.pid, name.start_ticks - 1)
    assert open_process(other) == -1
    assert kill_processes([other], 0.0)
    assert child.poll() is None


def test_a_name_without_a_start_names_nobody(child: subprocess.Popen[bytes]) -> None:
    assert open_process(ProcessName(child.pid)) == -1


def test_a_killed_process_is_gone_even_before_its_parent_asks(child: subprocess.Popen[bytes]) -> None:
    name = name_process(child.pid)
    assert kill_processes([name], 60.0)
    # It is a zombie now: nobody has waited for it.
    assert open_process(name) == -1
    assert name_process(child.pid).start_ticks == 0
    assert child.wait() == -9


def test_a_process_that_never_was_has_no_start() -> None:
    assert name_process(2**22 + 1) == ProcessName(2**22 + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_stopped_process_is_told_from_a_running_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        # Returns once it has stopped.
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)

"""Processes that wait until they are needed."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.children import Child
from splitserve.engine_core.process.standby import StandbyNews, StandbyProcess, wait_until_needed

WAIT_S = 60.0
# Exit code 7 if it was needed, 8 if not. What it does first comes between the two.
PROGRAM = """
import os, sys
from splitserve.engine_core.process.standby import wait_until_needed
{first}
sys.exit(7 if wait_until_needed(int(sys.argv[1])) else 8)
"""

Begin = Callable[[str], StandbyProcess]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts such a process; afterwards none is left."""
    children: list[Child] = []

    def start(first: str) -> StandbyProcess:
        def child(fd: int) -> Child:
            argv = [sys.executable, "-c", PROGRAM.format(first=first), str(fd)]
            children.append(Child(argv, death_signal=signal.SIGKILL, pass_fds=(fd,)))
            return children[-1]

        return StandbyProcess(child)

    yield start
    for child in children:
        if psutil.pid_exists(child.pid) and psutil.Process(child.pid).ppid() == os.getpid():
            child.signal(signal.SIGKILL)
            child.wait(WAIT_S)


def news(process: StandbyProcess) -> StandbyNews | None:
    """Wait for the next ones."""
    poll = select.poll()
    poll.register(process.fileno(), select.POLLIN)
    poll.poll(1000 * WAIT_S)
    return process.news()


def test_one_that_is_prepared_serves_when_it_is_needed(begin: Begin) -> None:
    process = begin("")
    assert news(process) is StandbyNews.PREPARED
    assert process.news() is None
    taken = process.take()
    assert taken is not None
    assert taken.wait(WAIT_S) == 7


def test_one_that_is_needed_before_it_is_prepared_serves_as_soon_as_it_is(begin: Begin) -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    process = begin(f"open('/proc/{os.getpid()}/fd/{read}', 'rb').read(1)")
    taken = process.take()
    assert taken is not None
    assert taken.poll() is None
    os.write(write, b"x")
    assert taken.wait(WAIT_S) == 7
    os.close(read)
    os.close(write)


def test_one_whose_report_nobody_has_read_serves_too(begin: Begin) -> None:
    process = begin("")
    poll = select.poll()
    poll.register(process.fileno(), select.POLLIN)
    assert poll.poll(1000 * WAIT_S)
    taken = process.take()
    assert taken is not None
    assert taken.wait(WAIT_S) == 7


def test_one_that_fails_while_it_prepares_tells_by_its_exit_code(begin: Begin) -> None:
    process = begin("sys.exit(3)")
    assert news(process) is StandbyNews.ENDED
    assert process.close(WAIT_S) == 3


def test_one_that_has_ended_cannot_be_taken(begin: Begin) -> None:
    process = begin("")
    assert news(process) is StandbyNews.PREPARED
    os.kill(process.child.pid, signal.SIGKILL)
    assert process.child.wait(WAIT_S) == -signal.SIGKILL
    assert process.take() is None


def test_one_that_is_not_needed_any_more_is_killed(begin: Begin) -> None:
    process = begin("import time; time.sleep(1000)")
    assert process.close() == -signal.SIGKILL


def test_it_ends_when_nobody_can_need_it_any_more() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    assert not wait_until_needed(theirs.detach())


def test_a_descriptor_that_is_no_line_is_refused() -> None:
    read, write = os.pipe()
    with pytest.raises(ConfigError, match=f"descriptor {read} cannot be used"):
        wait_until_needed(read)
    os.close(write)
    os.close(read)

"""Which process is meant by a pid, and does it still run? A pid alone may be somebody else's by now."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable

import msgspec

from splitserve.engine_core.process.children import process_stat

# Of the fields of /proc/PID/stat behind the name: its state, and clock ticks from boot to its start.
_STATE, _START_TICKS = 0, 19


class ProcessName(msgspec.Struct, frozen=True):
    """What names one process of this boot for good.

    Attributes:
        pid: its number, used again some time after its end.
        start_ticks: when it started, in clock ticks after boot; 0 where the system does not tell.
    """

    pid: int
    start_ticks: int = 0


def name_process(pid: int) -> ProcessName:
    """Return the name of a process that is known to run, one of our children for example."""
    return ProcessName(pid, _start_ticks(pid))


def open_process(name: ProcessName) -> int:
    """Return a pidfd of a running process, which the caller closes; -1 if it has ended, or is another one."""
    if not name.start_ticks or not hasattr(os, "pidfd_open"):
        return -1
    try:
        pidfd = os.pidfd_open(name.pid)
    except (OSError, OverflowError):
        # What a damaged file names need not be a number of a process at all.
        return -1
    # The descriptor is of whoever had the pid when it was opened, and he still has it while he runs.
    if _start_ticks(name.pid) == name.start_ticks and not has_ended(pidfd):
        return pidfd
    os.close(pidfd)
    return -1


def has_ended(pidfd: int, timeout_s: float = 0.0) -> bool:
    """Whether a process has ended, or does so within the time; a zombie has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, as SIGSTOP does; False where the system does not tell."""
    return process_stat(pid)[_STATE : _STATE + 1] == [b"T"]


def kill_processes(names: Iterable[ProcessName], timeout_s: float) -> bool:
    """Kill processes, but not those that have the pids of these by now; returns whether they are gone.

    Args:
        names: of the processes.
        timeout_s: for all together.
    """
    with contextlib.ExitStack() as opened:
        pidfds = [pidfd for name in names if (pidfd := open_process(name)) >= 0]
        for pidfd in pidfds:
            opened.callback(os.close, pidfd)
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        end_s = time.monotonic() + timeout_s
        return all([has_ended(pidfd, max(0.0, end_s - time.monotonic())) for pidfd in pidfds])


def _start_ticks(pid: int) -> int:
    """Return when a process started; 0 if it has ended or the system does not tell."""
    fields = process_stat(pid)
    try:
        return 0 if fields[_STATE] in (b"Z", b"X") else int(fields[_START_TICKS])
    except (ValueError, IndexError):
        return 0

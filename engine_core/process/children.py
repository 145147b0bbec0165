"""Child processes that never outlive their parent.

Run as a script it is the trampoline through which every child starts: it asks the kernel for a signal on the
parent's death, checks that the parent has not died meanwhile, and execs the real command. Doing this between
fork and exec would be unsafe because of libzmq's threads. Only the standard library may be imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence

_PR_SET_PDEATHSIG = 1
SETTING_PREFIX = "SPLITSERVE_"
# Of that prefix, but no setting: of tests, see process/kill_points.py.
INHERITED = ("SPLITSERVE_KILL_POINT",)
# 8 ms apart when observed; the threads of a killed process end within this time even on a busy machine.
DEATH_SIGNALS_S = 1.0


class Child:
    """One child process in a process group of its own, so that a terminal's Ctrl-C reaches only the parent.

    Start it from the main thread: the kernel treats the end of the starting thread as the parent's death.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        death_signal: signal.Signals,
        pass_fds: Sequence[int] = (),
        capture_output: bool = False,
    ) -> None:
        """Start a command.

        Args:
            argv: the command and its arguments.
            death_signal: signal sent to the child when this process dies, for whatever reason.
            pass_fds: descriptors that the child inherits under the same numbers.
            capture_output: stdout and stderr go into one pipe, `output_fd`, instead of being inherited.

        Raises:
            OSError: the command cannot be started.
        """
        output = subprocess.PIPE if capture_output else None
        self._popen = subprocess.Popen(
            [*_trampoline(death_signal), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if capture_output else None,
            pass_fds=tuple(pass_fds),
            process_group=0,
            env=child_environment(),
        )
        self.pid = self._popen.pid
        self.pidfd = _pidfd_of(self.pid)
        self.output_fd = -1
        if self._popen.stdout is not None:
            self.output_fd = self._popen.stdout.fileno()
            os.set_blocking(self.output_fd, False)

    def poll(self) -> int | None:
        """Return the exit code, -N after signal N; None while it is running."""
        return self._popen.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait at most timeout_s seconds for the exit code; None if it is still running.

        A captured child that writes more than its pipe holds blocks until read_output is called.
        """
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens once it has ended."""
        self._popen.send_signal(number)

    def read_output(self) -> bytes:
        """Return what a captured child wrote since the last call, at most 64 KiB; never blocks."""
        if self.output_fd < 0:
            return b""
        data = read_pipe(self.output_fd)
        if data is None:
            # A closed pipe stays readable, so polling it would spin.
            self.output_fd = -1
        return data or b""

    def close(self) -> None:
        """Release the descriptors; the process must have ended."""
        if self._popen.stdout is not None:
            self._popen.stdout.close()
            self.output_fd = -1
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.pidfd)
            self.pidfd = -1


def child_environment() -> dict[str, str]:
    """Return the environment without the variables that stand for flags: children are told by flags."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SETTING_PREFIX) or name in INHERITED
    }


def read_pipe(fd: int) -> bytes | None:
    """Return what a pipe holds, at most 64 KiB, and None at its end; never blocks."""
    try:
        return os.read(fd, 65536) or None
    except BlockingIOError:
        return b""


def process_stat(pid: int) -> list[bytes]:
    """Return what the system tells of a process, behind its name; [] if it is gone or nothing is told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def reap_adopted(ours: Collection[int]) -> None:
    """Let go of ended processes that the kernel gave this one, as it does with orphans in a container.

    Args:
        ours: pids of all children that it started itself, which are left alone. The next call takes what has
            ended behind one of them.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in ours:
            return
        os.waitpid(ended.si_pid, 0)


class DeathSignals:
    """Distinguishes a death signal that the kernel repeats from a second signal sent by the operator.

    When a parent with several threads is killed, a child may be reparented from one dying thread to the next,
    with a death signal for each. Create it before the first signal; used by one thread.
    """

    def __init__(self) -> None:
        self._parent_pid = os.getppid()
        self._first_s: float | None = None

    def is_repetition(self, now_s: float) -> bool:
        """Whether to ignore the signal that arrived at now_s; call it once for each signal."""
        if self._first_s is None:
            self._first_s = now_s
            return False
        return now_s - self._first_s < DEATH_SIGNALS_S and os.getppid() != self._parent_pid


def python_module(name: str) -> list[str]:
    """Return the command line that runs one of our modules.

    With -P Python does not search the working directory for modules, where the user has files of their own.
    """
    return [sys.executable, "-P", "-m", name]


def describe_exit(code: int) -> str:
    """Say how a process ended: "exit code 3" or "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shell_code(code: int) -> int:
    """Convert -N (ended by signal N) to 128 + N, the code that a shell would report."""
    return code if code >= 0 else 128 - code


def _pidfd_of(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, -1 if the system has no pidfd.

    Old kernels and some sandboxes refuse the call; the process is then checked at intervals.
    """
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return -1


def _trampoline(death_signal: signal.Signals) -> list[str]:
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), str(int(death_signal))]


def _become(parent_pid: int, death_signal: int, argv: list[str]) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(128 + death_signal)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"cannot start {argv[0]}: {error.strerror}")


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

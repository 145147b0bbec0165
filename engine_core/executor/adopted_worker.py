"""How is a worker watched and ended that another engine started? It is not our child."""

from __future__ import annotations

import contextlib
import os
import signal

from splitserve.engine_core.executor.worker_log import WorkerLog
from splitserve.engine_core.kept.processes import ProcessName, has_ended, open_process
from splitserve.engine_core.process.children import read_pipe


class AdoptedWorker:
    """A worker that a predecessor of this engine has left; offers what WorkerProcess does.

    Used by the busy loop's thread.
    """

    def __init__(self, name: ProcessName, pidfd: int) -> None:
        """Watch it.

        Args:
            name: of the process.
            pidfd: of the process; closed by close().
        """
        self.name = name
        self._pidfd = pidfd
        self._output = WorkerLog()
        self._output_fd = _read_end(name.pid)

    @classmethod
    def find(cls, name: ProcessName) -> AdoptedWorker | None:
        """Return the worker of that name; None if it has ended."""
        pidfd = open_process(name)
        return cls(name, pidfd) if pidfd >= 0 else None

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when it prints or ends."""
        return [fd for fd in (self._pidfd, self._output_fd) if fd >= 0]

    @property
    def needs_asking(self) -> bool:
        """False: there is a pidfd."""
        return False

    def how_it_ended(self, timeout_s: float = 0.0) -> str | None:
        """Say that it ended, its exit code is its parent's; None if it still runs after the time."""
        return "it ended" if has_ended(self._pidfd, timeout_s) else None

    def pass_on_output(self) -> None:
        """Print what it has printed since the last call, at most 64 KiB."""
        self._output.feed(self._read())

    def last_lines(self) -> str:
        """Return the end of what it printed to us."""
        self._drain_output()
        return self._output.tail()

    def end(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens once it has ended."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end."""
        has_ended(self._pidfd, timeout_s)
        self._drain_output()

    def close(self) -> None:
        """Release the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self._pidfd = self._output_fd = -1

    def _read(self) -> bytes:
        if self._output_fd < 0:
            return b""
        data = read_pipe(self._output_fd)
        if data is None:
            os.close(self._output_fd)
            self._output_fd = -1
        return data or b""

    def _drain_output(self) -> None:
        while data := self._read():
            self._output.feed(data)


def _read_end(pid: int) -> int:
    """Return a new read end of the pipe that a worker prints into; -1 if it prints elsewhere.

    Its first engine had the other one. Without any reader writing fails, which workers ignore.
    """
    path = f"/proc/{pid}/fd/1"
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith("pipe:"):
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1

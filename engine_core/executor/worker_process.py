"""How is one worker process started, watched and ended on this machine?"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.worker_log import WorkerLog
from splitserve.engine_core.kept.processes import ProcessName, name_process
from splitserve.engine_core.process.children import Child, describe_exit, python_module
from splitserve.engine_core.settings.arguments import flag_words
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.worker_settings import WorkerPlace

_WAIT_SLICE_S = 0.05

WorkerArgv = Callable[[WorkerPlace], list[str]]


def worker_argv(place: WorkerPlace) -> list[str]:
    """Return the command line of the worker of one rank on this machine."""
    settings = declared(WorkerPlace)
    given = {each.field: value for each in settings if (value := getattr(place, each.field)) != each.default}
    return [*python_module("splitserve.worker.cli"), *flag_words(settings, given)]


class WorkerProcess:
    """A worker, or a launcher of workers, that was started; used by the busy loop's thread."""

    def __init__(
        self,
        argv: Sequence[str],
        # SIGKILL: whatever a worker is doing, it must not hold memory or a device without its engine.
        death_signal: signal.Signals = signal.SIGKILL,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            argv: its command line.
            death_signal: what it gets when this process dies.
            pass_fds: descriptors it inherits under the same numbers.

        Raises:
            WorkerError: it cannot be started.
        """
        self._output = WorkerLog()
        try:
            self._child = Child(argv, death_signal=death_signal, pass_fds=pass_fds, capture_output=True)
        except OSError as error:
            raise WorkerError(f"cannot start the worker: {error}") from None

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when it prints or ends."""
        return [fd for fd in (self._child.pidfd, self._child.output_fd) if fd >= 0]

    @property
    def needs_asking(self) -> bool:
        """Whether its end is found only by polling, for lack of a pidfd."""
        return self._child.pidfd < 0

    @property
    def name(self) -> ProcessName:
        """Names it for a later engine."""
        return name_process(self._child.pid)

    def exit_code(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit code once it has ended, -N after signal N; None if it still runs after the time."""
        return self._child.wait(timeout_s) if timeout_s else self._child.poll()

    def how_it_ended(self, timeout_s: float = 0.0) -> str | None:
        """Say how it ended, "exit code 3" for example; None if it still runs after the time."""
        code = self.exit_code(timeout_s)
        return None if code is None else describe_exit(code)

    def pass_on_output(self) -> None:
        """Print what it has printed since the last call, at most 64 KiB."""
        self._output.feed(self._child.read_output())

    def last_lines(self) -> str:
        """Return the end of what it printed."""
        self._drain_output()
        return self._output.tail()

    def end(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens once it has ended."""
        if self._child.poll() is None:
            self._child.signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and read meanwhile what it prints: a full pipe would keep it from ending."""
        for _ in range(math.ceil(timeout_s / _WAIT_SLICE_S)):
            if self._child.wait(_WAIT_SLICE_S) is not None:
                break
            self._drain_output()
        self._drain_output()

    def close(self) -> None:
        """Release the descriptors; it must have ended."""
        self._child.close()

    def _drain_output(self) -> None:
        while data := self._child.read_output():
            self._output.feed(data)

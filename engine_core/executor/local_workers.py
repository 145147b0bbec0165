"""How are workers run on the engine's own machine? As one child process per rank."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Sequence

import zmq

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.executor.worker_group import configuration
from splitserve.engine_core.executor.worker_process import WorkerArgv, WorkerProcess, worker_argv
from splitserve.engine_core.ipc.transport import BoundRouter
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.process.children import describe_exit
from splitserve.engine_core.settings.worker_settings import WorkerPlace


class LocalWorkers:
    """One process per rank, on a socket in a private directory; see WorkerGroup.

    Args:
        config: the engine's configuration.
        argv: builds a worker's command line.
    """

    def __init__(self, config: EngineConfig, argv: WorkerArgv = worker_argv) -> None:
        self._config = config
        self._argv = argv
        self._directory = ""
        # By rank.
        self._workers: list[WorkerProcess] = []
        self.router: BoundRouter | None = None

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """The workers' output pipes and their pidfds."""
        return [fd for worker in self._workers for fd in worker.descriptors]

    @property
    def needs_asking(self) -> bool:
        """Without pidfd (on systems other than Linux) a lost worker is found by polling."""
        return any(worker.needs_asking for worker in self._workers)

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Bind a private socket and start the workers.

        Raises:
            WorkerError: a process cannot be started.
        """
        self._directory = tempfile.mkdtemp(prefix="splitserve-worker-")
        address = f"ipc://{self._directory}/worker.sock"
        self.router = BoundRouter(context, address)
        num_ranks = self._config.num_ranks
        rendezvous = f"file://{self._directory}/rendezvous" if num_ranks > 1 else ""
        for rank in range(num_ranks):
            place = WorkerPlace(connect=address, rank=rank, rendezvous=rendezvous)
            self._workers.append(WorkerProcess(self._argv(place)))

    def attend(self) -> None:
        """Pass on what the workers printed."""
        for worker in self._workers:
            worker.pass_on_output()

    def configure(self, rank: int) -> Configure:
        """Return what to tell a worker; all share this machine."""
        return configuration(self._config, self._config.num_ranks)

    def on_met(self) -> None:
        """Remove the files: no worker ever reconnects, and from here on a crash leaves none behind."""
        self._remove_directory()

    def where(self, rank: int) -> str:
        """Return "": it is here."""
        return ""

    def how_it_ended(self, rank: int, timeout_s: float = 0.0) -> str | None:
        """Say how a worker ended; None if it still runs after the time."""
        code = self._workers[rank].exit_code(timeout_s)
        return None if code is None else describe_exit(code)

    def last_lines(self, rank: int) -> str:
        """Return the end of what a worker printed."""
        return self._workers[rank].last_lines()

    def end(self, timeout_s: float) -> None:
        """Wait for the workers; terminate, then kill those that do not end."""
        self._wait(timeout_s)
        for number, wait_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 10.0)):
            for worker in self._workers:
                worker.end(number)
            self._wait(wait_s)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        if self.router is not None:
            self.router.close()
            self.router = None
        self._remove_directory()

    def _wait(self, timeout_s: float) -> None:
        """Wait for all workers together."""
        end_s = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.wait(max(0.0, end_s - time.monotonic()))

    def _remove_directory(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""

"""How are workers run on the engine's own machine? As one process per rank, which may outlive the engine.

this engine...                 its workers
starts                         those its predecessor left, if they fit; else new ones, its children
dies, or leaves them           wait for a successor at the same address for --worker-wait, then end
ends                           end

Until a worker serves, the kernel kills it with its engine. docs/processes.md says more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence

import msgspec
import zmq

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.executor.adopted_worker import AdoptedWorker
from splitserve.engine_core.executor.attaching import attach
from splitserve.engine_core.executor.worker_group import configuration
from splitserve.engine_core.executor.worker_process import WorkerArgv, WorkerProcess, worker_argv
from splitserve.engine_core.ipc.transport import BoundRouter
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.kept.folder import KILL_S, WorkersFolder, can_keep_workers
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kept.processes import is_stopped, kill_processes
from splitserve.engine_core.kept.record import GroupRecord, fingerprint
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.settings.worker_settings import WorkerPlace

_log = logging.getLogger("engine_core")


class _Held(msgspec.Struct, frozen=True):
    """What decides, besides the checkpoint, what workers hold: a successor must have the same."""

    told: Configure
    tokenizer_check: bool
    num_blocks: int
    kv_offload_gb: float


def keeping_folder(config: EngineConfig) -> WorkersFolder | None:
    """Return where successors of an engine find its workers; None if they are to end with it."""
    if config.worker_wait_s > 0 and can_keep_workers(config.listen):
        return WorkersFolder(config.listen)
    return None


def fingerprint_of(config: EngineConfig) -> str:
    """Return what an engine and its successor have in common if the workers of one serve the other."""
    told = configuration(config, config.num_ranks)
    # These a worker can be told anew.
    settings = msgspec.structs.replace(told.settings, log_level="info", log_format="text")
    told = msgspec.structs.replace(told, settings=settings)
    held = _Held(told, config.tokenizer_check, config.num_blocks, config.kv_offload_gb)
    return fingerprint(held, config.model, software_version())


def has_served(config: EngineConfig) -> bool:
    """Whether workers that have loaded this very checkpoint wait, or did a moment ago, for such an engine.

    Then its files have been checked. What has become of the workers is seen when the engine starts.
    """
    folder = keeping_folder(config)
    record = folder.read() if folder is not None else None
    return record is not None and record.fingerprint == fingerprint_of(config)


class LocalWorkers:
    """One process per rank, on a socket in a private directory; see WorkerGroup.

    Args:
        config: the engine's configuration.
        argv: builds a worker's command line.
        kept: where a successor finds them; None if they are to end with this engine.
    """

    def __init__(
        self, config: EngineConfig, argv: WorkerArgv = worker_argv, kept: WorkersFolder | None = None
    ) -> None:
        self._config = config
        self._argv = argv
        self._kept = kept
        # Whether a successor finds them there: they wait for it only then.
        self._are_found = False
        self._directory = ""
        # By rank.
        self._workers: list[WorkerProcess] | list[AdoptedWorker] = []
        self.router: BoundRouter | None = None
        self.ledger: Ledger | None = None

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """The workers' output pipes and their pidfds."""
        return [fd for worker in self._workers for fd in worker.descriptors]

    @property
    def needs_asking(self) -> bool:
        """Without pidfd (on systems other than Linux) a lost worker is found by polling."""
        return any(worker.needs_asking for worker in self._workers)

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Bind a private socket; take over the predecessor's workers, or start new ones.

        Blocks for as long as a dying predecessor takes to end, and its workers to say what they hold: about
        two seconds each at most.

        Raises:
            WorkerError: a process cannot be started.
            ConfigError: another engine owns the workers of this address.
        """
        if self._kept is None:
            self._directory = tempfile.mkdtemp(prefix="splitserve-worker-")
            address = f"ipc://{self._directory}/worker.sock"
        else:
            self._kept.enter()
            address = self._kept.socket_address(os.getpid())
        if self._kept is None or not self._attach(context, self._kept):
            self._start_new(context, address)

    def attend(self) -> None:
        """Pass on what the workers printed."""
        for worker in self._workers:
            worker.pass_on_output()

    def configure(self, rank: int) -> Configure:
        """Return what to tell a worker; all share this machine."""
        wait_s = self._config.worker_wait_s if self._are_found else 0.0
        return configuration(self._config, self._config.num_ranks, wait_s)

    def on_met(self) -> None:
        """Remove the files that only starting workers need, so that from here on a crash leaves none."""
        if self._kept is None:
            self._remove_directory()
        else:
            _remove(self._kept.rendezvous)

    def where(self, rank: int) -> str:
        """Return "": it is here."""
        return ""

    def how_it_ended(self, rank: int, timeout_s: float = 0.0) -> str | None:
        """Say how a worker ended; None if it still runs after the time."""
        return self._workers[rank].how_it_ended(timeout_s)

    def is_stopped(self, rank: int) -> bool:
        """Whether a worker's process was stopped by a signal."""
        return rank < len(self._workers) and is_stopped(self._workers[rank].name.pid)

    def kill(self) -> None:
        """Kill every worker."""
        for worker in self._workers:
            worker.end(signal.SIGKILL)

    def have_ended(self) -> bool:
        """Whether no worker runs any more."""
        return all(worker.how_it_ended() is not None for worker in self._workers)

    def last_lines(self, rank: int) -> str:
        """Return the end of what a worker printed."""
        return self._workers[rank].last_lines()

    def leave(self) -> None:
        """Leave the workers to a successor; one that does not serve yet ends by itself."""
        if self._kept is None or not self._are_found:
            self.end(0.0)
            return
        self._release()
        self._kept.leave(keep=True)

    def end(self, timeout_s: float) -> None:
        """Wait for the workers; terminate, then kill those that do not end."""
        self._wait(timeout_s)
        for number, wait_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 10.0)):
            for worker in self._workers:
                worker.end(number)
            self._wait(wait_s)
        self._release()
        self._remove_directory()
        if self._kept is not None:
            self._kept.leave(keep=False)

    def _attach(self, context: zmq.Context[zmq.Socket[bytes]], kept: WorkersFolder) -> bool:
        record = kept.read()
        if record is None or not record.workers:
            return False
        begin_s = time.monotonic()
        fits = record.fingerprint == fingerprint_of(self._config)
        if fits and len(record.workers) == self._config.num_ranks:
            self.router = BoundRouter(context, kept.socket_address(record.starter_pid))
            self._workers = attach(self.router, record)
        if self._workers:
            # Without one, as it seems to be on a machine that forbids it, all prefixes are computed again.
            self.ledger = Ledger.of_worker(record.workers[0], record.ledger_fd) or self.ledger
            took_s = time.monotonic() - begin_s
            self._are_found = True
            pids = [worker.pid for worker in record.workers]
            log_event(_log, logging.INFO, "workers taken over", pids=pids, took_s=took_s)
            return True
        log_event(_log, logging.WARNING, "workers of a predecessor do not fit and are ended")
        self._release()
        kill_processes(record.workers, KILL_S)
        kept.forget()
        return False

    def _start_new(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.router = BoundRouter(context, address)
        num_ranks = self._config.num_ranks
        path = f"{self._directory}/rendezvous" if self._kept is None else self._kept.rendezvous
        _remove(path)
        ledger_fds = self._begin_ledger() if self._kept is not None else []
        workers: list[WorkerProcess] = []
        self._workers = workers
        self._are_found = False
        for rank in range(num_ranks):
            place = WorkerPlace(
                connect=address, rank=rank, rendezvous=f"file://{path}" if num_ranks > 1 else ""
            )
            workers.append(WorkerProcess(self._argv(place), pass_fds=ledger_fds))
        if self._kept is not None:
            names = [worker.name for worker in workers]
            ledger_fd = next(iter(ledger_fds), -1)
            record = GroupRecord(fingerprint_of(self._config), names, ledger_fd, os.getpid())
            self._record(self._kept, record)

    def _record(self, kept: WorkersFolder, record: GroupRecord) -> None:
        """Let successors find the workers; a full disk is no reason not to use them."""
        try:
            kept.write(record)
        except OSError as error:
            log_event(_log, logging.WARNING, "workers are not kept for a successor", error=error.strerror)
        else:
            self._are_found = True

    def _begin_ledger(self) -> list[int]:
        """Make sure that there is a ledger, which says nothing; return its descriptor."""
        try:
            self.ledger = self.ledger or Ledger.create()
        except OSError as error:
            log_event(_log, logging.WARNING, "prefixes are not kept for a successor", error)
            return []
        self.ledger.clear()
        return [self.ledger.descriptor]

    def _release(self) -> None:
        """Close what connects us with the workers."""
        for worker in self._workers:
            worker.close()
        self._workers = []
        if self.router is not None:
            self.router.close()
            self.router = None

    def _wait(self, timeout_s: float) -> None:
        """Wait for all workers together."""
        end_s = time.monotonic() + timeout_s
        for worker in self._workers:
            worker.wait(max(0.0, end_s - time.monotonic()))

    def _remove_directory(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

"""How are workers run on a Ray cluster? As actors, placed and watched by a separate launcher process.

Ray stays out of the engine: its driver has threads and blocking calls, and takes a second to import. Steps do
not go through Ray either, as a Ray call costs more than the step's own message: the workers connect to the
engine over TCP, with keys generated for this start.

state      event            next
placing    WorkersPlaced    running: the socket is bound, the workers are told to run
running    WorkerEnded      running: the executor asks how it ended, and raises
any        LaunchFailed, the launcher ends    attend() raises
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Collection, Sequence

import msgspec
import zmq

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError, SplitServeError, WorkerError
from splitserve.engine_core.executor.worker_group import configuration
from splitserve.engine_core.executor.worker_process import WorkerProcess
from splitserve.engine_core.ipc.curve import KeyGuard, ServerKeys
from splitserve.engine_core.ipc.launcher_messages import (
    FromLauncherMessage,
    LaunchFailed,
    PlaceWorkers,
    RunWorkers,
    WorkerEnded,
    WorkersPlaced,
)
from splitserve.engine_core.ipc.line_link import LineLink
from splitserve.engine_core.ipc.transport import BoundRouter
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.process.children import describe_exit, python_module
from splitserve.engine_core.settings.worker_settings import WorkerPlace

# For the launcher to give the room back and, where it has started Ray, to end it; 1.4 s when idle.
_LAUNCHER_END_S = 10.0


class RayWorkers:
    """One actor per rank; see WorkerGroup.

    Args:
        config: the engine's configuration.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._killed_s: float | None = None
        self._directory = ""
        self._launcher: WorkerProcess | None = None
        self._link: LineLink[FromLauncherMessage] | None = None
        self._guard: KeyGuard | None = None
        # By rank, once they are placed.
        self._nodes: list[str] = []
        self._configurations: list[Configure] = []
        self._ended: dict[int, str] = {}
        self.router: BoundRouter | None = None
        self.ledger: Ledger | None = None

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """The launcher's messages, output and pidfd, and questions about keys."""
        guard = [self._guard.socket] if self._guard is not None else []
        link = [self._link.fileno()] if self._link is not None and self._link.is_open else []
        launcher = self._launcher.descriptors if self._launcher is not None else []
        return [*guard, *link, *launcher]

    @property
    def needs_asking(self) -> bool:
        """False: the end of the launcher closes its messages."""
        return False

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Start the launcher and tell it what to place.

        Raises:
            ConfigError: ray is not installed.
            WorkerError: the launcher cannot be started.
        """
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("--executor ray needs the package ray: pip install 'splitserve[ray]'")
        self._context = context
        self._directory = tempfile.mkdtemp(prefix="splitserve-ray-")
        ours, theirs = socket.socketpair()
        self._link = LineLink(ours, FromLauncherMessage)
        with theirs:
            argv = [*python_module("splitserve.worker.ray.launcher"), str(theirs.fileno())]
            # It lives on for the second that it takes to end what it has started.
            self._launcher = WorkerProcess(argv, signal.SIGTERM, [theirs.fileno()])
        config = self._config
        self._link.send(
            PlaceWorkers(
                num_ranks=config.num_ranks,
                cluster=config.ray_address,
                directory=self._directory,
                device=config.device,
                num_cpus=max(1, config.num_threads),
                timeout_s=config.ray_timeout_s,
            )
        )

    def attend(self) -> None:
        """Take the launcher's messages, pass on what it printed, answer questions about keys.

        Raises:
            WorkerError: the launcher has ended, or found no room.
            ConfigError: there is no such cluster, or the engine's address there cannot be bound.
        """
        if self._guard is not None:
            self._guard.handle()
        self._hear(timeout_s=0.0)
        if self._launcher is not None:
            self._launcher.pass_on_output()
            if self._link is not None and not self._link.is_open:
                raise self._loss(self._launcher)

    def configure(self, rank: int) -> Configure:
        """Return what to tell a worker; how many share its machine is known since it was placed."""
        return self._configurations[rank]

    def on_met(self) -> None:
        """Keep everything: Ray's files are in use as long as it runs."""

    def where(self, rank: int) -> str:
        """Return the name of a rank's node, "" before it has one."""
        return self._nodes[rank] if self._nodes else ""

    def how_it_ended(self, rank: int, timeout_s: float = 0.0) -> str | None:
        """Say how a worker ended; None if it still runs after the time."""
        self._await_ends({rank}, timeout_s)
        return self._ended.get(rank)

    def is_stopped(self, rank: int) -> bool:
        """Return False: that cannot be seen from here."""
        return False

    def kill(self) -> None:
        """Close the launcher's messages, which ends it and all workers."""
        self._killed_s = time.monotonic()
        if self._link is not None:
            self._link.close()
            self._link = None

    def have_ended(self) -> bool:
        """Whether the launcher has ended; one that takes too long is killed."""
        if self._launcher is None:
            return True
        if self._killed_s is not None and time.monotonic() > self._killed_s + _LAUNCHER_END_S:
            self._launcher.end(signal.SIGKILL)
        return self._launcher.exit_code() is not None

    def last_lines(self, rank: int) -> str:
        """Return the end of what all workers printed; Ray names the process and node of each line."""
        return self._launcher.last_lines() if self._launcher is not None else ""

    def leave(self) -> None:
        """End the workers: Ray ends its actors with the job of the launcher, which ends with this engine."""
        self.end(0.0)

    def end(self, timeout_s: float) -> None:
        """Close the launcher's messages, which ends it and all workers; by force if it takes too long."""
        # What fails now has nobody left to tell.
        with contextlib.suppress(SplitServeError):
            self._await_ends(range(len(self._nodes)), timeout_s)
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._launcher is not None:
            self._launcher.wait(_LAUNCHER_END_S)
            self._launcher.end(signal.SIGKILL)
            self._launcher.wait(_LAUNCHER_END_S)
            self._launcher.close()
            self._launcher = None
        if self.router is not None:
            self.router.close()
            self.router = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""
        self._killed_s = None
        self._nodes, self._configurations, self._ended = [], [], {}

    def _await_ends(self, ranks: Collection[int], timeout_s: float) -> None:
        """Hear the launcher until all these ranks have ended, at most timeout_s seconds in all."""
        end_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while left_s >= 0 and not self._ended.keys() >= set(ranks):
            self._hear(left_s)
            if self._link is None or not self._link.is_open:
                break
            left_s = end_s - time.monotonic()

    def _hear(self, timeout_s: float) -> None:
        """Take the launcher's messages; wait for one at most timeout_s seconds."""
        if self._link is None or not self._link.is_open:
            return
        if timeout_s > 0:
            poller = zmq.Poller()
            poller.register(self._link.fileno(), zmq.POLLIN)
            poller.poll(int(timeout_s * 1000))
        for message in self._link.receive(wait=False):
            match message:
                case WorkersPlaced():
                    self._run_workers(message)
                case WorkerEnded(rank=rank, how=how):
                    self._ended[rank] = how
                case LaunchFailed(code=code, message=text):
                    raise ConfigError(text) if code == ConfigError.code else WorkerError(text)

    def _run_workers(self, placed: WorkersPlaced) -> None:
        assert self._context is not None, "start() comes first"
        assert self._link is not None, "start() comes first"
        self._nodes = [seat.node for seat in placed.seats]
        public, secret = zmq.curve_keypair()
        worker_public, worker_secret = zmq.curve_keypair()
        # Before the socket is bound: libzmq would let everybody in without it.
        self._guard = KeyGuard(self._context, frozenset({worker_public}))
        keys = ServerKeys(public, secret, frozenset({worker_public}))
        host = f"[{placed.host}]" if ":" in placed.host else placed.host
        self.router = BoundRouter(self._context, f"tcp://{host}:*", keys)
        config = msgspec.structs.replace(self._config, device=placed.device)
        self._configurations = [configuration(config, seat.num_local_ranks) for seat in placed.seats]
        rendezvous = placed.rendezvous if config.num_ranks > 1 else ""
        places = [
            WorkerPlace(connect=self.router.address, rank=rank, rendezvous=rendezvous)
            for rank in range(config.num_ranks)
        ]
        texts = (key.decode() for key in (public, worker_public, worker_secret))
        self._link.send(RunWorkers(places, *texts))

    def _loss(self, launcher: WorkerProcess) -> WorkerError:
        code = launcher.exit_code(_LAUNCHER_END_S)
        how = "it closed its socket" if code is None else describe_exit(code)
        tail = launcher.last_lines()
        return WorkerError(
            f"the launcher on Ray was lost: {how}" + (f"; its last lines:\n{tail}" if tail else "")
        )

"""What does the executor need from whatever starts and watches the workers, here or on a cluster?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import zmq

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.ipc.transport import BoundRouter
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.settings.worker_settings import WorkerSettings

# Of the step timeout: a rank that waits for another reports it before the engine's deadline blames it.
_EXCHANGE_SHARE = 0.8


def configuration(config: EngineConfig, num_local_ranks: int, worker_wait_s: float = 0.0) -> Configure:
    """Return what a worker is told of its engine's configuration.

    Args:
        config: of the engine.
        num_local_ranks: ranks on the worker's machine.
        worker_wait_s: how long it waits for a successor of this engine.
    """
    exchange_timeout_s = config.step_timeout_s * _EXCHANGE_SHARE
    settings = config.narrowed_to(WorkerSettings)
    return Configure(settings, num_local_ranks, exchange_timeout_s, worker_wait_s, config.fit)


class WorkerGroup(Protocol):
    """The workers of one engine as processes; what they say and are told is the executor's.

    Used by the busy loop's thread. No method but end() blocks for longer than the time it is given.
    """

    @property
    def router(self) -> BoundRouter | None:
        """The socket that workers connect to, each under the digits of its rank; None until it is bound."""

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """What becomes readable when attend() has something to do, besides the router."""

    @property
    def needs_asking(self) -> bool:
        """Whether the end of a worker is found only by polling."""

    @property
    def ledger(self) -> Ledger | None:
        """Where a successor reads what the workers' KV cache holds, the same after end() and start()."""

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Begin to bring the workers up: those that a predecessor left, or, always after end(), new ones.

        Raises:
            WorkerError: a process cannot be started.
            ConfigError: the workers' socket cannot be bound.
        """

    def attend(self) -> None:
        """Process what has happened and pass on what was printed.

        Raises:
            WorkerError: the workers cannot be started or watched any more.
            ConfigError: there is no place for them.
        """

    def configure(self, rank: int) -> Configure:
        """Return what to tell a worker that has said hello."""

    def on_met(self) -> None:
        """Every worker is connected for good: remove whatever was only needed for connecting."""

    def where(self, rank: int) -> str:
        """Return the name of a rank's node, "" if it is this machine or not known yet."""

    def how_it_ended(self, rank: int, timeout_s: float = 0.0) -> str | None:
        """Say how a worker ended, "exit code 3" for example; None if it still runs after the time."""

    def is_stopped(self, rank: int) -> bool:
        """Whether a worker's process was stopped by a signal, as far as that can be seen from here."""

    def kill(self) -> None:
        """Begin to end all workers by force."""

    def have_ended(self) -> bool:
        """Whether all workers that kill() has killed have ended; end() does not block then."""

    def last_lines(self, rank: int) -> str:
        """Return the end of what a worker printed, as far as it is known here."""

    def leave(self) -> None:
        """Leave the workers to a successor of this engine, if that can find them; else end them."""

    def end(self, timeout_s: float) -> None:
        """Give the workers, which were told to end, that long; then end them by force and remove all files.

        May be called twice, and before start(). start() may follow again.
        """

"""What does the busy loop need from an executor, be its workers processes, an object or simulated?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import zmq

from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage, SchedulerOutput


class Executor(ABC):
    """Carries steps to the workers and their messages back; owned and called by the busy loop's thread only.

    Life: start() -> LoadProgress... WorkerReady -> init_kv_cache() -> KVCacheReady -> submit() and receive()
    -> shutdown().
    No method but shutdown() blocks.
    """

    @property
    def sockets(self) -> Sequence[zmq.Socket | int]:
        """Sockets and file descriptors the busy loop polls for input on this executor's behalf."""
        return ()

    def poll_timeout_s(self) -> float | None:
        """Seconds until receive() returns something even if no socket becomes readable; None if never."""
        return None

    @abstractmethod
    def start(self) -> None:
        """Begin to start the workers."""

    @abstractmethod
    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Tell every worker the size of its KV cache and of its CPU offload tier; KVCacheReady follows."""

    @abstractmethod
    def submit(self, output: SchedulerOutput) -> None:
        """Start one step; as many may be in flight as the scheduler allows."""

    @abstractmethod
    def receive(self) -> list[FromWorkerMessage]:
        """Return every message that has arrived, oldest first; one ModelRunnerOutput per step for all ranks.

        Raises:
            WorkerError: a worker was lost, sent garbage or missed its step deadline.
        """

    @abstractmethod
    def shutdown(self, timeout_s: float) -> None:
        """End the workers, by force after timeout_s; safe to call twice."""

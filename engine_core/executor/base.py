"""What does the busy loop need from an executor, be its workers processes, an object or simulated?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import zmq

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.wire import LogLevelName
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    FromWorkerMessage,
    LoadAdapter,
    SchedulerOutput,
)
from splitserve.engine_core.kept.ledger import Ledger


class Executor(ABC):
    """Carries steps to the workers and their messages back; owned and called by the busy loop's thread only.

    Life: start() -> LoadProgress... WorkerReady -> init_kv_cache() -> KVCacheReady -> submit() and receive()
    -> shutdown(). When the workers are lost: restart() instead of start().
    No method but shutdown() and leave() blocks, besides receive() for some seconds when a worker was lost
    and the others have to tell why.

    Attributes:
        before_waiting: called before receive() does that.
    """

    before_waiting: Callable[[], None] = staticmethod(lambda: None)

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
    def restart(self) -> None:
        """End all workers at once, by force, and start them again; nothing of the old ones arrives any more.

        Raises:
            WorkerError: they cannot be started.
        """

    def stop(self) -> None:
        """End all workers at once, by force, until restart(): once they have ended, MemoryReleased arrives.

        Raises:
            EngineUnavailableError: they cannot be started again.
        """
        raise EngineUnavailableError("these workers cannot be started again")

    @abstractmethod
    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Tell every worker the size of its KV cache and of its CPU offload tier; KVCacheReady follows."""

    def release_kv_cache(self) -> None:
        """Have every worker free its KV cache until init_kv_cache(); one MemoryReleased follows.

        Raises:
            EngineUnavailableError: these workers cannot.
            WorkerError: a worker is gone.
        """
        raise EngineUnavailableError("these workers cannot give up their KV cache alone")

    @abstractmethod
    def submit(self, output: SchedulerOutput) -> None:
        """Start one step; as many may be in flight as the scheduler allows."""

    @abstractmethod
    def compile(self, message: CompileGrammar) -> None:
        """Have the rank that samples compile a grammar; GrammarCompiled follows, between any two steps."""

    @abstractmethod
    def load_adapter(self, message: LoadAdapter) -> None:
        """Have every rank load an adapter; one AdapterLoaded follows, between any two steps."""

    @abstractmethod
    def receive(self) -> list[FromWorkerMessage]:
        """Return every message that has arrived, oldest first; one ModelRunnerOutput per step for all ranks.

        Raises:
            WorkerError: a worker was lost, sent garbage or missed its step deadline.
        """

    def set_log_level(self, level: LogLevelName) -> None:
        """Have workers that serve log from another level on; those in this process do so already."""
        return

    def owing(self) -> str:
        """Name the workers that owe the output of the oldest step."""
        return "the worker"

    def stopped(self) -> str:
        """Name the workers whose process was stopped by a signal; "" if none was, or it cannot be known."""
        return ""

    def discount(self, pause_s: float) -> None:
        """Move all deadlines by a time in which the engine itself stood still."""
        return

    def ledger(self) -> Ledger | None:
        """Return where a successor of this engine reads what the KV cache holds; None if there is none."""
        return None

    def leave(self) -> None:
        """Leave the workers to the engine's successor, in place of shutdown(); those that cannot wait end."""
        self.shutdown(0.0)

    @abstractmethod
    def shutdown(self, timeout_s: float) -> None:
        """End the workers, by force after timeout_s; safe to call twice."""

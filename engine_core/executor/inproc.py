"""An executor around a worker object of the same process, for tests and for debugging a worker.

The object is called inside receive(), so that submit() returns at once; a step then blocks the loop, which
worker processes never do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from splitserve.engine_core.errors import SplitServeError, WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    CompileGrammar,
    FromWorkerMessage,
    GrammarCompiled,
    KVCacheReady,
    LoadAdapter,
    MemoryReleased,
    ModelRunnerOutput,
    SchedulerOutput,
    WorkerReady,
)


class InprocWorker(Protocol):
    """What the executor calls; tests pass the object in, as engine_core never imports a worker."""

    def load(self) -> WorkerReady:
        """Load the weights."""
        ...

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        """Allocate the KV cache and its CPU offload tier."""
        ...

    def compile(self, message: CompileGrammar) -> GrammarCompiled:
        """Have a grammar ready."""
        ...

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Have an adapter in its slot."""
        ...

    def release_kv_cache(self) -> MemoryReleased:
        """Free the KV cache."""
        ...

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        ...


class InprocExecutor(Executor):
    """Calls a worker object, one call per pending command."""

    def __init__(self, worker: InprocWorker) -> None:
        self._worker = worker
        self._pending: deque[Callable[[], FromWorkerMessage]] = deque()

    def poll_timeout_s(self) -> float | None:
        """0 while a command is pending, else None."""
        return 0.0 if self._pending else None

    def start(self) -> None:
        """Load at the next receive()."""
        self._pending.append(self._worker.load)

    def restart(self) -> None:
        """Raise WorkerError: the object is the caller's, and failed for a reason that will be there again."""
        raise WorkerError("a worker object cannot be started again")

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocate at the next receive()."""
        self._pending.append(lambda: self._worker.init_kv_cache(num_blocks, num_host_blocks))

    def release_kv_cache(self) -> None:
        """Free it at the next receive()."""
        self._pending.append(self._worker.release_kv_cache)

    def submit(self, output: SchedulerOutput) -> None:
        """Run a step at the next receive()."""
        self._pending.append(lambda: self._worker.execute(output))

    def compile(self, message: CompileGrammar) -> None:
        """Compile a grammar at the next receive()."""
        self._pending.append(lambda: self._worker.compile(message))

    def load_adapter(self, message: LoadAdapter) -> None:
        """Load an adapter at the next receive()."""
        self._pending.append(lambda: self._worker.load_adapter(message))

    def receive(self) -> list[FromWorkerMessage]:
        """Run the oldest pending command and return its result.

        Raises:
            SplitServeError: the worker raised it, as ModelLoadError for a bad checkpoint.
            WorkerError: the worker raised anything else; its exception is the cause.
        """
        if not self._pending:
            return []
        command = self._pending.popleft()
        try:
            return [command()]
        except SplitServeError:
            raise
        except Exception as error:
            raise WorkerError(f"{type(error).__name__}: {error}") from error

    def shutdown(self, timeout_s: float) -> None:
        """Drop pending commands; the object is the caller's."""
        self._pending.clear()

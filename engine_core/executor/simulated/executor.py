"""How is the engine tested without workers? Simulated steps take time on a clock and fail as scripted.

Steps are computed when they are submitted; their outputs, and their faults, come out of receive() when
their time has come on the clock. Steps run one after the other, as on a real worker.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.worker import SimulatedWorker
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    FromWorkerMessage,
    LoadAdapter,
    MemoryReleased,
    SchedulerOutput,
)


class FaultKind(enum.Enum):
    """What goes wrong.

    ROW_ERROR: one row fails; CRASH: the worker is lost; HANG: no more messages come; OUT_OF_MEMORY: the step
    does not fit into memory.
    """

    ROW_ERROR = 0
    CRASH = 1
    HANG = 2
    OUT_OF_MEMORY = 3


@dataclass(slots=True, frozen=True)
class ScriptedFault:
    """Something fails in step `step`, counted from 1; a ROW_ERROR hits the row at `place` of its column."""

    kind: FaultKind
    step: int
    place: int = 0


@dataclass(slots=True, frozen=True)
class _Due:
    time_s: float
    message: FromWorkerMessage | WorkerError


class SimulatedExecutor(Executor):
    """Runs a SimulatedWorker on a clock."""

    def __init__(
        self,
        clock: Clock,
        model: SimulatedModel | None = None,
        *,
        step_time_s: float = 0.0,
        hang_deadline_s: float = 0.0,
        faults: Sequence[ScriptedFault] = (),
        fits_memory: Callable[[SchedulerOutput], bool] = lambda step: True,
        survives: Callable[[SchedulerOutput], bool] = lambda step: True,
    ) -> None:
        """Build an executor that start() brings up at once.

        Args:
            clock: tells when a step is over.
            model: what is simulated.
            step_time_s: seconds each step takes.
            hang_deadline_s: seconds after which a hang becomes a WorkerError; 0 for never.
            faults: what fails and when.
            fits_memory: whether a step finds the memory it needs.
            survives: whether the worker does not crash in a step.
        """
        self._clock = clock
        self._model = model or SimulatedModel()
        self._worker = SimulatedWorker(self._model)
        self._step_time_s = step_time_s
        self._hang_deadline_s = hang_deadline_s
        self._faults = {fault.step: fault for fault in faults}
        self._fits_memory = fits_memory
        self._survives = survives
        self._due: deque[_Due] = deque()
        self._free_at_s = 0.0
        self._is_lost = False

    def poll_timeout_s(self) -> float | None:
        """Seconds until the next message is due; None when none is."""
        return max(0.0, self._due[0].time_s - self._clock.monotonic()) if self._due else None

    def start(self) -> None:
        """Report the model as loaded."""
        self._reply(self._worker.load(), 0.0)

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Report the cache as allocated."""
        self._reply(self._worker.init_kv_cache(num_blocks, num_host_blocks), 0.0)

    def release_kv_cache(self) -> None:
        """Report it as released, after the steps before."""
        self._reply(self._worker.release_kv_cache(), 0.0)

    def submit(self, output: SchedulerOutput) -> None:
        """Compute a step; its output is due after the step time."""
        if self._is_lost:
            return
        fault = self._faults.get(output.step)
        if fault is None and not self._survives(output):
            fault = ScriptedFault(FaultKind.CRASH, output.step)
        if fault is not None and fault.kind in (FaultKind.CRASH, FaultKind.HANG):
            self._lose(fault)
            return
        failing = frozenset([fault.place]) if fault and fault.kind is FaultKind.ROW_ERROR else frozenset()
        lacks_memory = fault is not None and fault.kind is FaultKind.OUT_OF_MEMORY
        lacks_memory = lacks_memory or not self._fits_memory(output)
        try:
            message: FromWorkerMessage | WorkerError = msgspec.structs.replace(
                self._worker.execute(output, failing, lacks_memory), compute_s=self._step_time_s
            )
        except WorkerError as error:
            self._is_lost = True
            message = error
        self._reply(message, self._step_time_s)

    def compile(self, message: CompileGrammar) -> None:
        """Answer at once."""
        self._reply(self._worker.compile(message), 0.0)

    def load_adapter(self, message: LoadAdapter) -> None:
        """Answer at once."""
        self._reply(self._worker.load_adapter(message), 0.0)

    def receive(self) -> list[FromWorkerMessage]:
        """Return what is due.

        Raises:
            WorkerError: a scripted crash or hang is due, or the engine broke the protocol.
        """
        now_s = self._clock.monotonic()
        arrived: list[FromWorkerMessage] = []
        while self._due and self._due[0].time_s <= now_s:
            message = self._due[0].message
            if isinstance(message, WorkerError):
                if arrived:
                    break  # what came before the fault is handed out first
                raise message
            self._due.popleft()
            arrived.append(message)
        return arrived

    def lose(self) -> None:
        """Lose the worker now: what was computed is lost too, and receive() raises."""
        self._due.clear()
        self._is_lost = True
        self._free_at_s = 0.0
        self._reply(WorkerError("the simulated worker was lost"), 0.0)

    def stop(self) -> None:
        """Have no worker."""
        self._due.clear()
        self._is_lost = True
        self._free_at_s = 0.0
        self._reply(MemoryReleased(), 0.0)

    def restart(self) -> None:
        """Put a worker without rows and KV in the place of the one that was lost."""
        self._due.clear()
        self._worker = SimulatedWorker(self._model)
        self._free_at_s = 0.0
        self._is_lost = False
        self.start()

    def shutdown(self, timeout_s: float) -> None:
        """Forget what is still due."""
        self._is_lost = True
        self._due.clear()

    def _lose(self, fault: ScriptedFault) -> None:
        self._is_lost = True
        if fault.kind is FaultKind.CRASH:
            self._reply(WorkerError(f"the simulated worker crashed in step {fault.step}"), self._step_time_s)
        elif self._hang_deadline_s > 0:
            error = WorkerError(f"step {fault.step} took longer than {self._hang_deadline_s:g} s")
            self._reply(error, self._hang_deadline_s)

    def _reply(self, message: FromWorkerMessage | WorkerError, duration_s: float) -> None:
        self._free_at_s = max(self._free_at_s, self._clock.monotonic()) + duration_s
        self._due.append(_Due(self._free_at_s, message))

"""One worker process on this machine: its command line, its life, what it prints."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.worker_output import WorkerOutput
from splitserve.engine_core.process.children import Child, python_module

_WAIT_SLICE_S = 0.05
# Of the step's time: who waits for another rank says so before the engine's own deadline, and is not blamed.
_EXCHANGE_SHARE = 0.8


class Place(NamedTuple):
    """Where a worker finds its engine and its fellows.

    Attributes:
        rank: its own.
        address: the engine's socket.
        rendezvous: where the ranks meet; empty for a single one.
        num_local_ranks: ranks that share its machine's cores and memory.
    """

    rank: int
    address: str
    rendezvous: str
    num_local_ranks: int


WorkerArgv = Callable[[EngineConfig, Place], list[str]]


def worker_argv(config: EngineConfig, place: Place) -> list[str]:
    """Return the command line of the worker of one rank on this machine."""
    return [*python_module("splitserve.worker.cli"), *worker_flags(config, place)]


def worker_flags(config: EngineConfig, place: Place) -> list[str]:
    """Return the flags of the worker of one rank, wherever it runs."""
    options = {
        "--connect": place.address,
        "--rank": str(place.rank),
        "--model": config.model,
        "--dtype": config.dtype,
        "--quantization": config.quantization,
        "--block-size": str(config.block_size),
        "--max-num-seqs": str(config.max_num_seqs),
        "--max-num-batched-tokens": str(config.max_num_batched_tokens),
        "--max-model-len": str(config.max_model_len),
        "--num-threads": str(config.num_threads),
        "--kv-cache-memory-bytes": str(config.kv_cache_memory_bytes),
        "--device": config.device,
        "--attention-backend": config.attention_backend,
        "--gpu-memory-utilization": str(config.gpu_memory_utilization),
        "--log-level": config.log_level,
        "--tensor-parallel-size": str(config.tensor_parallel_size),
        "--pipeline-parallel-size": str(config.pipeline_parallel_size),
        "--num-local-ranks": str(place.num_local_ranks),
        "--exchange-timeout": str(config.step_timeout_s * _EXCHANGE_SHARE),
    }
    if place.rendezvous:
        options["--rendezvous"] = place.rendezvous
    switches = ["--batch-invariant"] if config.batch_invariant else []
    switches += ["--enforce-eager"] if config.enforce_eager else []
    words = [word for option in options.items() for word in option]
    return [*words, *switches]


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
        self._output = WorkerOutput()
        try:
            self._child = Child(argv, death_signal=death_signal, pass_fds=pass_fds, capture_output=True)
        except OSError as error:
            raise WorkerError(f"cannot start the worker: {error}") from None

    @property
    def descriptors(self) -> list[int]:
        """What gets readable when it prints or ends."""
        return [fd for fd in (self._child.pidfd, self._child.output_fd) if fd >= 0]

    @property
    def needs_asking(self) -> bool:
        """Whether its end shows by asking only, for want of a pidfd."""
        return self._child.pidfd < 0

    def exit_code(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit code once it has ended, -N after signal N; None if it still runs after the time."""
        return self._child.wait(timeout_s) if timeout_s else self._child.poll()

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

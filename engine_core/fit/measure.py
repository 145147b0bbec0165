"""How are the workers asked what a model will take? They start, meet, answer, and end."""

from __future__ import annotations

import math

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.worker_messages import MemoryNeed

_END_S = 5.0


def ask_workers(executor: Executor, clock: Clock, timeout_s: float) -> MemoryNeed:
    """Return what each worker will take at most; the executor is shut down then.

    Args:
        executor: of workers that were told to `fit`; not started.
        clock: for the timeout.
        timeout_s: longest wait.

    Raises:
        ConfigError, ModelLoadError: the workers refuse configuration or checkpoint.
        WorkerError: one was lost, or does not answer.
    """
    end_s = clock.monotonic() + timeout_s
    executor.start()
    try:
        while (left_s := end_s - clock.monotonic()) > 0:
            _wait(executor, left_s)
            for message in executor.receive():
                if isinstance(message, MemoryNeed):
                    return message
        raise WorkerError(f"the workers did not say within {timeout_s:g} s what the model will take")
    finally:
        executor.shutdown(_END_S)


def _wait(executor: Executor, timeout_s: float) -> None:
    poller = zmq.Poller()
    for source in executor.sockets:
        poller.register(source, zmq.POLLIN)
    asked_s = executor.poll_timeout_s()
    poller.poll(math.ceil(1000 * min(timeout_s, 1.0 if asked_s is None else asked_s)))

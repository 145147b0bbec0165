"""Which exceptions belong to one row, and what becomes of it: the row fails, the others go on.

    raised while                                     the exception                       what fails
    a row's parameters, edits or mask are prepared   any                                 the row
    logprobs are gathered                            not of device, memory or ranks      rows that raise alone
    all rows are sampled                             not of device, memory or ranks      rows that raise alone
    anything else                                    any                                 the worker

A RuntimeError is how torch and the kernels report that the device failed; what it holds is unknown then. The
ranks of a group cannot repeat a step for one of them, so there the third line fails the worker.
"""

from __future__ import annotations

import logging

from splitserve.engine_core.errors import EngineRequestError, ProtocolError, WorkerError
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.parallel.group import StepAbandonedError

logger = logging.getLogger(__name__)

_OF_THE_WORKER = (RuntimeError, MemoryError, WorkerError, ProtocolError, StepAbandonedError)


def may_be_a_rows(error: Exception) -> bool:
    """Whether an exception that stopped the work on several rows may be the fault of one of them."""
    return not isinstance(error, _OF_THE_WORKER)


def row_fault(row: int, error: Exception) -> RowError:
    """Log the exception with its traceback; return the error that ends the request of `row`."""
    log_event(logger, logging.ERROR, "row_failed", error, row=row)
    kind = type(error).__name__
    return RowError(row, EngineRequestError.code, f"{kind} in sampling: {error}", EngineRequestError.status)

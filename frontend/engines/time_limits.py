"""The times that a request may take: what is left of them before an engine has it, and what it ends with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from splitserve.engine_core.errors import EngineRequestError, QueueTimeoutError
from splitserve.frontend.engines.generation import GenerationRequest

# An engine takes 0 for "no timeout".
MIN_TIMEOUT_S = 0.001


def timeout_error(timeout_s: float) -> EngineRequestError:
    """Return the error with which an engine ends a sequence that has timed out."""
    error = EngineRequestError(f"the request did not finish within its {timeout_s:g} s")
    error.code, error.status = "timeout", 504
    return error


def queue_timeout_error(queue_timeout_s: float) -> QueueTimeoutError:
    """Return the error of a sequence that no engine has taken within its queue timeout."""
    return QueueTimeoutError(f"no engine was ready for {queue_timeout_s:g} s")


def least_timeout_s(requests: Iterable[GenerationRequest]) -> float:
    """Return the first time at which a request that no engine has begun would end; inf for never."""
    limits = (limit for request in requests for limit in (request.timeout_s, request.queue_timeout_s))
    return min(filter(None, limits), default=math.inf)


def check_time_left(waited_s: float, timeout_s: float, queue_timeout_s: float) -> None:
    """Check that a request which no engine has begun may wait on; 0 is no timeout.

    Raises:
        EngineRequestError: nothing is left of its timeout.
        QueueTimeoutError: nothing is left of its queue timeout.
    """
    if timeout_s and waited_s >= timeout_s:
        raise timeout_error(timeout_s)
    if queue_timeout_s and waited_s >= queue_timeout_s:
        raise queue_timeout_error(queue_timeout_s)


def left_after(waited_s: float, request: GenerationRequest) -> GenerationRequest:
    """Return a request with what is left of its timeouts after it has waited for an engine.

    Raises:
        EngineRequestError: nothing is left of its timeout.
        QueueTimeoutError: nothing is left of its queue timeout.
    """
    check_time_left(waited_s, request.timeout_s, request.queue_timeout_s)
    if not waited_s:
        return request
    return replace(
        request,
        timeout_s=_left_s(request.timeout_s, waited_s),
        queue_timeout_s=_left_s(request.queue_timeout_s, waited_s),
    )


def _left_s(limit_s: float, waited_s: float) -> float:
    return max(MIN_TIMEOUT_S, limit_s - waited_s) if limit_s else 0.0

"""Turns an engine's report of a failed request into the error that the caller sees."""

from __future__ import annotations

import math
import re

from splitserve.engine_core.errors import (
    ContextLengthError,
    EngineRequestError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
    QueueTimeoutError,
    SplitServeError,
)
from splitserve.engine_core.ipc.messages import Finished, FinishReason, Rejected

# An engine that is not sound must not decide what no client and no log expects.
_CODE = re.compile("[a-z0-9_]{1,64}")
_STATUSES = range(400, 600)
_MAX_RETRY_S = 3600.0


def rejected_error(rejected: Rejected) -> SplitServeError:
    """Return the error of a request that the engine rejected; code, status and param are kept."""
    return _error(
        rejected.status, rejected.code, rejected.message, rejected.param, retry_after_s=rejected.retry_after_s
    )


def finished_error(finished: Finished) -> SplitServeError | None:
    """Return the error a request ended with, None if it finished normally."""
    if finished.reason is not FinishReason.ERROR:
        return None
    code = finished.error_code or EngineRequestError.code
    message = finished.error_message or "the engine failed on this request"
    return _error(finished.error_status, code, message, retry_after_s=finished.retry_after_s)


def _error(
    status: int, code: str, message: str, param: str | None = None, retry_after_s: float = 0.0
) -> SplitServeError:
    error: SplitServeError
    if status not in _STATUSES or not _CODE.fullmatch(code):
        return EngineRequestError(message)
    if status == OverloadedError.status:
        error = OverloadedError(message)
        error.retry_after_s = (
            min(max(0.0, retry_after_s), _MAX_RETRY_S) if math.isfinite(retry_after_s) else 0.0
        )
    elif 400 <= status < 500:
        kind = ContextLengthError if code == ContextLengthError.code else InvalidRequestError
        error = kind(message, param, code)
    elif code == QueueTimeoutError.code:
        # The engine is still there: nobody must retry elsewhere on the client's behalf.
        error = QueueTimeoutError(message)
    elif status == EngineUnavailableError.status:
        error = EngineUnavailableError(message)
    else:
        error = EngineRequestError(message)
    error.code, error.status = code, status
    return error

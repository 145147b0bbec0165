"""The request that continues a sequence where it is, and what a sequence ends with that cannot go on."""

from __future__ import annotations

import math

import msgspec

from splitserve.engine_core.errors import EngineRequestError
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.frontend.engines.connection.open_sequence import OpenSequence

# The engine takes 0 for "no timeout".
_MIN_TIMEOUT_S = 0.001


def resumption(sequence: OpenSequence, now_s: float) -> AddRequest:
    """Return what an engine needs to go on after the last token.

    The queue's limits and timeout are not applied once more to a sequence that an engine had accepted. Prompt
    logprobs are complete once there is a token; without one they begin anew.

    Args:
        sequence: displaced.
        now_s: monotonic time.
    """
    request, sampling = sequence.request, sequence.request.sampling
    if sequence.token_ids and sampling.prompt_logprobs is not None:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    left_s = 0.0 if sequence.deadline_s == math.inf else max(_MIN_TIMEOUT_S, sequence.deadline_s - now_s)
    return msgspec.structs.replace(
        request,
        sampling=sampling,
        resume_token_ids=request.resume_token_ids + sequence.token_ids.tobytes(),
        timeout_s=left_s,
        continues=request.continues or sequence.was_displaced,
        # Each token tells how far it gets.
        streams=request.streams or sequence.watched,
    )


def timeout_error(sequence: OpenSequence) -> EngineRequestError:
    """Return the error with which an engine ends a sequence that has timed out."""
    error = EngineRequestError(f"the request did not finish within its {sequence.request.timeout_s:g} s")
    error.code, error.status = "timeout", 504
    return error

"""The request that continues a sequence where it is."""

from __future__ import annotations

import math

import msgspec

from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.time_limits import MIN_TIMEOUT_S


def resumption(sequence: OpenSequence, now_s: float) -> AddRequest:
    """Return what an engine needs to go on after the last token.

    The queue's limits and timeout are not applied once more to a sequence that an engine had accepted;
    another keeps what is left of its queue timeout. Prompt logprobs are complete once there is a token;
    without one they begin anew.

    Args:
        sequence: displaced.
        now_s: monotonic time.
    """
    request, sampling = sequence.request, sequence.request.sampling
    if sequence.token_ids and sampling.prompt_logprobs is not None:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
    return msgspec.structs.replace(
        request,
        sampling=sampling,
        resume_token_ids=request.resume_token_ids + sequence.token_ids.tobytes(),
        timeout_s=_left_s(sequence.deadline_s, now_s),
        queue_timeout_s=_left_s(sequence.queue_deadline_s, now_s),
        continues=request.continues or sequence.was_displaced,
        # Each token tells how far it gets.
        streams=request.streams or sequence.watched,
    )


def _left_s(deadline_s: float, now_s: float) -> float:
    return 0.0 if deadline_s == math.inf else max(MIN_TIMEOUT_S, deadline_s - now_s)

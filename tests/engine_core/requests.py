"""Requests as the scheduler's parts see them, made without an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.request import Request
from splitserve.engine_core.sequence_sampling import SequenceSampling


def make_request(
    prompt: Sequence[int] = (1, 2, 3),
    *,
    arrival: int = 0,
    priority: int = 0,
    max_num_tokens: int = 100,
    namespace: bytes = b"n" * 32,
    sampling: SequenceSampling | None = None,
) -> Request:
    return Request(
        frontend=b"frontend",
        handle=arrival,
        request_id=f"request-{arrival}",
        sampling=sampling or SequenceSampling(seed=0),
        sort_key=(priority, arrival),
        arrival=arrival,
        arrival_s=0.0,
        deadline_s=math.inf,
        token_ids=bytearray(pack_int32(prompt)),
        num_prompt_tokens=len(prompt),
        max_num_tokens=max_num_tokens,
        tenant="",
        cache_salt="",
        namespace=namespace,
        frontend_idx=0,
    )

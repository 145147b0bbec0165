"""Splits one prompt's request into the engine's requests, one for each of its n completions."""

from __future__ import annotations

import secrets

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import AdapterInfo
from splitserve.engine_core.sequence_sampling import MAX_SEED
from splitserve.frontend.engines.generation import GenerationRequest


def split_request(request: GenerationRequest, adapter: AdapterInfo | None = None) -> list[AddRequest]:
    """Return the n requests that the engine runs, with seeds seed, seed + 1 and so on (modulo 2**64).

    A random seed is used if the client gave none. Stop strings stay here; prompt logprobs are requested once.

    Args:
        request: of a client.
        adapter: that changes the model; None for none.
    """
    sampling = request.sampling
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    prompt = pack_int32(request.prompt_token_ids)
    predicted = pack_int32(request.predicted_token_ids) if request.predicted_token_ids else b""
    return [
        AddRequest(
            handle=0,  # The host gives it one.
            request_id=request.request_id if sampling.n == 1 else f"{request.request_id}-{index}"[:128],
            prompt_token_ids=prompt,
            sampling=sampling.sequence(
                (seed + index) & MAX_SEED, sampling.prompt_logprobs if index == 0 else None
            ),
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            timeout_s=request.timeout_s,
            queue_timeout_s=request.queue_timeout_s,
            # Stop strings are found here, and the engine must not run on for long after one.
            streams=request.streams or bool(sampling.stop),
            pools=request.pools,
            continues=request.continues,
            second_at=request.second_at,
            pools_tokens=request.pools_tokens,
            adapter="" if adapter is None else adapter.name,
            adapter_digest="" if adapter is None else adapter.digest,
            predicted_token_ids=predicted,
        )
        for index in range(sampling.n)
    ]

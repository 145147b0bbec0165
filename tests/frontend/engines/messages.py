"""Messages of an engine, made short to write."""

from __future__ import annotations

from splitserve.engine_core.ipc.codec import pack_float32, pack_int32, pack_int64
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    EngineStats,
    Finished,
    FinishReason,
    Pong,
    Ready,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION, ModelInfo, TokenLogprobs
from splitserve.engine_core.sampling_params import SamplingParams

MODEL = ModelInfo("/nowhere", "LlamaForCausalLM", "float32", 387, 512, [2])


def ready(
    epoch: int = 1, *, model: ModelInfo = MODEL, lease_renewed: bool = False, lease_s: float = 10.0
) -> Ready:
    return Ready(
        PROTOCOL_VERSION, "0", "engine-0", epoch, model, ["m", "alias"], 8, 20, lease_s, lease_renewed
    )


def pong(nonce: int = 0, epoch: int = 1, *, draining: bool = False) -> Pong:
    return Pong(nonce, epoch, draining, EngineStats(num_steps=7))


def outputs(
    rows: list[tuple[int, int, int]],
    finished: list[Finished] | None = None,
    epoch: int = 1,
    logprobs: list[TokenLogprobs] | None = None,
    prompt_logprobs: list[TokenLogprobs] | None = None,
) -> StepOutputs:
    """Rows are (handle, token id, index)."""
    handles, token_ids, indices = zip(*rows, strict=True) if rows else ((), (), ())
    return StepOutputs(
        epoch,
        pack_int64(handles),
        pack_int32(token_ids),
        pack_int32(indices),
        finished=finished or [],
        logprobs=logprobs or [],
        prompt_logprobs=prompt_logprobs or [],
    )


def tokens(handle: int, token_ids: list[int], first: int = 0) -> StepOutputs:
    return outputs([(handle, token_id, first + i) for i, token_id in enumerate(token_ids)])


def logprob(handle: int, index: int, token_id: int, value: float = -0.5) -> TokenLogprobs:
    return TokenLogprobs(handle, index, 2, pack_int32([token_id, 9, 8]), pack_float32([value, -0.25, -1.0]))


def end(
    handle: int, reason: FinishReason = FinishReason.LENGTH, stop_token_id: int | None = None
) -> Finished:
    return Finished(handle, reason, stop_token_id)


def add(handle: int, num_prompt_tokens: int = 2) -> AddRequest:
    prompt = pack_int32(range(1, 1 + num_prompt_tokens))
    return AddRequest(handle, f"r{handle}", prompt, SamplingParams(seed=1))

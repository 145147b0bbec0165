"""Valid messages of every kind and direction, to begin with."""

from __future__ import annotations

from splitserve.engine_core.ipc.codec import encode, pack_float32, pack_int32, pack_int64
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Call,
    CallKind,
    CallResult,
    Draining,
    EngineStats,
    Finished,
    FinishReason,
    HandOver,
    Hello,
    Loading,
    Ping,
    Pong,
    QueueStats,
    Ready,
    Recovering,
    Refused,
    Rejected,
    RequestInfo,
    RequestStage,
    Started,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import (
    PROTOCOL_VERSION,
    BlockMap,
    EngineView,
    ModelInfo,
    StepColumns,
    TenantShare,
    TokenLogprobs,
)
from splitserve.engine_core.sequence_sampling import RepetitionDetection, SequenceSampling

EPOCH = 7
MODEL = ModelInfo("/nowhere", "LlamaForCausalLM", "float32", 50, 128, [0])
SAMPLINGS = (
    SequenceSampling(seed=1, max_tokens=8),
    SequenceSampling(seed=2, max_tokens=20, temperature=0.0, logprobs=2, prompt_logprobs=1),
    SequenceSampling(
        seed=3,
        max_tokens=12,
        min_tokens=4,
        stop_token_ids=(7, 9),
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        logit_bias={5: 1.0, 6: -100.0},
        allowed_token_ids=(4, 5, 6, 7),
    ),
    SequenceSampling(
        seed=4,
        max_tokens=None,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        bad_word_token_ids=((1, 2), (3,)),
        logprobs=0,
        logprob_token_ids=(1, 2),
        repetition_detection=RepetitionDetection(max_pattern_size=4, min_count=3),
        ignore_eos=True,
    ),
)


def request(handle: int, sampling: SequenceSampling, num_prompt_tokens: int = 5, **fields: object) -> bytes:
    prompt = pack_int32([(3 * handle + i) % 50 for i in range(num_prompt_tokens)])
    return encode(AddRequest(handle, f"r{handle}-0", prompt, sampling, **fields))  # type: ignore[arg-type]


def frontend_frames() -> list[bytes]:
    """What a frontend may say."""
    adds = [request(i, sampling, 4 + 9 * i) for i, sampling in enumerate(SAMPLINGS)]
    adds += [
        request(4, SAMPLINGS[0], more=True),
        request(5, SAMPLINGS[0], resume_token_ids=pack_int32([3, 4]), continues=True, tenant="a"),
        request(6, SAMPLINGS[1], 70, priority=-3, cache_salt="s", timeout_s=2.0, queue_timeout_s=1.0),
        request(7, SAMPLINGS[3], streams=False, tenant="b"),
    ]
    others = [
        Hello(PROTOCOL_VERSION, "frontend", "0.1.0"),
        Abort([0, 1, 2]),
        Abort(list(range(8))),
        Ping(5),
        Call(1, CallKind.EXPLAIN_REQUESTS),
        Call(2, CallKind.EXPLAIN_REQUESTS, ["r1-0", "r2"], "a"),
        Call(3, CallKind.VIEW_ENGINE, tenant="a"),
        Call(4, CallKind.SET_LOG_LEVEL, log_level="warning"),
    ]
    return adds + [encode(message) for message in others]


def logprobs(key: int, index: int) -> TokenLogprobs:
    return TokenLogprobs(key, index, 1, pack_int32([3, 4, 5]), pack_float32([-0.5, -1.0, -2.0]))


def outputs(handles: list[int], index: int, **fields: object) -> bytes:
    count = len(handles)
    columns = pack_int64(handles), pack_int32([3] * count), pack_int32([index] * count)
    return encode(StepOutputs(EPOCH, *columns, **fields))  # type: ignore[arg-type]


VIEW = EngineView(
    BlockMap(bytes([0, 1, 2, 3])),
    StepColumns(7, *(pack_int32([1, 2]) for _ in range(6))),
    [TenantShare("a", 1, 2), TenantShare("", 3, 0, 2)],
    8,
)


def engine_frames() -> list[bytes]:
    """What an engine may say."""
    ready = Ready(PROTOCOL_VERSION, "0.1.0", "engine-0", EPOCH, MODEL, ["m"], 8, 20, 10.0)
    messages = [
        Loading("engine-0", "loading weights", 0.5),
        ready,
        Ready(PROTOCOL_VERSION, "0.1.0", "engine-0", EPOCH, MODEL, ["m"], 8, 20, 10.0, lease_renewed=True),
        Refused("another version", PROTOCOL_VERSION, "0.1.0"),
        Rejected(1, 429, "overloaded", "the queue is full", None, 1.0),
        Rejected(2, 400, "invalid_value", "out of range", "temperature"),
        Rejected(3, 503, "engine_unavailable", "shutting down"),
        Draining(5.0),
        Pong(3, EPOCH, False, EngineStats(num_steps=7, finished={"stop": 1}), QueueStats(3, 1, {"rows": 2})),
        CallResult(4, ok=True, requests=[RequestInfo("r1", RequestStage.WAITING)]),
        CallResult(5, ok=True, view=VIEW),
        HandOver("restart"),
        Recovering("starting the worker", 0.5),
    ]
    finished = [Finished(1, FinishReason.LENGTH), Finished(2, FinishReason.STOP, 7, 3, 1)]
    failed = [Finished(3, FinishReason.ERROR, error_code="request_failed", error_message="it broke")]
    return [
        *(encode(message) for message in messages),
        outputs([1, 2, 3, 4], 0, started=[Started(1, 2, 0.1), Started(2, 0, 0.2)]),
        outputs([1, 2, 3, 4], 1, logprobs=[logprobs(2, 1)]),
        outputs([1, 2], 2, finished=finished),
        outputs([], 0, finished=failed),
        outputs([], 0, prompt_logprobs=[logprobs(2, i) for i in range(1, 4)]),
    ]

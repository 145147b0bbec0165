"""Which messages pass between api-frontend and engine-core? See engine_core.ipc.wire for how they travel."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from splitserve.engine_core.ipc.wire import (
    AdapterInfo,
    DraftCounts,
    EngineView,
    LogLevelName,
    ModelInfo,
    Pooled,
    TokenLogprobs,
    Wire,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling

# Per message: as many sequences as one frontend may have in flight on an engine.
MAX_HANDLES = 16_384
# Only the first sixteen are looked at.
MAX_REQUEST_IDS = 256


class FinishReason(enum.IntEnum):
    """Why a request ended.

    STOP: EOS, stop token or stop string; LENGTH: token or context limit; REPETITION: its output was caught in
    a loop, and it had asked to be ended in that case.
    """

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


# --- api-frontend -> engine-core ---


class Hello(Wire, frozen=True, tag=0):
    """First message of a frontend; also sent again after a silence, to renew or re-create its lease."""

    protocol_version: int
    frontend_id: str
    software_version: str


class AddRequest(Wire, frozen=True, tag=1):
    """One sequence to generate.

    Attributes:
        handle: chosen by the frontend, 0..2**63-1, unique among its requests; every output carries it.
        request_id: for logs; opaque, at most 128 characters.
        prompt_token_ids: int32 column.
        sampling: the seed is always filled in.
        resume_token_ids: int32 column of tokens already emitted; generation continues after them.
        priority: lower runs first under the priority policy.
        tenant: owner of the prefix-cache namespace and of the fair share.
        cache_salt: narrows prefix-cache sharing further.
        timeout_s: seconds from arrival after which the engine ends the request; 0 means never.
        queue_timeout_s: seconds it may wait before it, or another sequence of its request, first runs; 0
            means the engine's default.
        streams: every token is wanted at once. Otherwise the engine may batch tokens, except the first and
            the last, for up to engine_core.scheduler.output.GATHER_S.
        more: another sequence of the same client request follows directly; all of them are accepted or
            rejected together, once the last has arrived, and share one tenant and priority.
        continues: part of a client request that has run already, such as a later step of a beam search. It is
            rejected only beyond twice the queue's limits, and no queue timeout ends it.
        pools: the prompt's vector is wanted, and no token: sampling.max_tokens is 0.
        pools_tokens: with pools: the vector of each token is wanted, one after the other.
        second_at: index of the first token that belongs to the second text of a pair, for models that tell
            the two apart; 0 if none does.
        adapter: name of the adapter that changes the model; "" for none.
        adapter_digest: of the adapter, if the frontend knows it: the request is rejected if another has the
            name by now.
        predicted_token_ids: int32 column of what the output is expected to be like, for drafts.
    """

    handle: int
    request_id: str
    prompt_token_ids: bytes
    sampling: SequenceSampling
    resume_token_ids: bytes = b""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    timeout_s: float = 0.0
    queue_timeout_s: float = 0.0
    streams: bool = True
    more: bool = False
    continues: bool = False
    pools: bool = False
    second_at: int = 0
    pools_tokens: bool = False
    adapter: str = ""
    adapter_digest: str = ""
    predicted_token_ids: bytes = b""


class Abort(Wire, frozen=True, tag=2):
    """End these requests now; unknown handles are ignored. No Finished follows."""

    handles: Annotated[list[int], msgspec.Meta(max_length=MAX_HANDLES)]


class Ping(Wire, frozen=True, tag=3):
    """Renews the frontend's lease; the busy loop itself answers with Pong."""

    nonce: int


class CallKind(enum.IntEnum):
    """All the utility calls there are."""

    EXPLAIN_REQUESTS = 0
    RESET_PREFIX_CACHE = 1
    VIEW_ENGINE = 2
    LOAD_ADAPTER = 3
    UNLOAD_ADAPTER = 4
    SET_LOG_LEVEL = 5
    SLEEP = 6
    WAKE_UP = 7


class Call(Wire, frozen=True, tag=4):
    """A utility call, answered by CallResult with the same call_id.

    Attributes:
        request_ids: for EXPLAIN_REQUESTS; "ID" also matches its sequences "ID-0" and so on; none means all,
            and only the first sixteen are looked at.
        tenant: whose requests are described, and whose share by name; everybody's if it is "".
        adapter, path: for LOAD_ADAPTER, its name and its directory, which has to be below --lora-dir; for
            UNLOAD_ADAPTER the name.
        log_level: for SET_LOG_LEVEL, of the engine, its workers and its frontends.
        keeps_weights: for SLEEP, which is answered once the memory is free: only that of the KV cache is.
    """

    call_id: int
    kind: CallKind
    request_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_REQUEST_IDS)] = []
    tenant: str = ""
    adapter: str = ""
    path: str = ""
    log_level: LogLevelName = "info"
    keeps_weights: bool = False


FrontendMessage = Hello | AddRequest | Abort | Ping | Call

# --- engine-core -> api-frontend ---


class Loading(Wire, frozen=True, tag=0):
    """Answer to Hello while the engine cannot serve yet; fraction is 0..1 of the weights loaded."""

    engine_id: str
    stage: str
    fraction: float


class Ready(Wire, frozen=True, tag=1):
    """The engine serves. `epoch` identifies this life of the engine; outputs of other epochs are dropped.

    Attributes:
        lease_renewed: True if the Hello came from a frontend whose lease was alive: its requests go on.
            False: the engine holds no request of this frontend.
        max_num_waiting: requests that may wait in addition to the max_num_seqs that run.
    """

    protocol_version: int
    software_version: str
    engine_id: str
    epoch: int
    model: ModelInfo
    served_model_names: list[str]
    max_num_seqs: int
    max_logprobs: int
    lease_s: float
    lease_renewed: bool = False
    max_num_waiting: int = 4096


class Refused(Wire, frozen=True, tag=2):
    """The engine does not talk to this frontend: version mismatch or identity in use; names both versions."""

    message: str
    protocol_version: int
    software_version: str


class Rejected(Wire, frozen=True, tag=3):
    """One request was not accepted. `code` and `status` are those of engine_core.errors."""

    handle: int
    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float = 0.0


class Started(Wire, frozen=True):
    """A request left the queue for the first time."""

    handle: int
    num_cached_tokens: int
    queue_time_s: float


class Finished(Wire, frozen=True):
    """A request ended on the engine; its last token, if any, is in the columns of the same StepOutputs.

    Attributes:
        stop_token_id: the stop token that matched, None for EOS and other reasons.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first scheduled.
        num_preemptions: how often it was preempted.
        error_code, error_message: set when reason is ERROR.
        retry_after_s: for a request that was displaced by another, seconds to wait before a retry.
    """

    handle: int
    reason: FinishReason
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error_code: str = ""
    error_message: str = ""
    error_status: int = 500
    retry_after_s: float = 0.0


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Drafted(Wire, frozen=True):
    """One step's drafts for a request; the tokens that came of them are in the same StepOutputs.

    Attributes:
        token_index: of the step's first token within the request's output.
        num_drafts, num_counted: tokens drafted, and how many of them are the step's first tokens.
    """

    handle: int
    token_index: _Count
    num_drafts: _Count
    num_counted: _Count


class StepOutputs(Wire, frozen=True, tag=4):
    """All outputs of one step for one frontend, in columns.

    Attributes:
        handles: int64 column [n].
        token_ids: int32 column [n].
        token_indices: int32 column [n]; index of each token within its request's output, so that gaps and
            repeats are detected.
        prompt_logprobs: if asked for; may arrive over several steps, before the first token.
        pooled: vectors of requests that pool, with or before their end.
        drafted: of the requests that tokens were drafted for.
    """

    epoch: int
    handles: bytes
    token_ids: bytes
    token_indices: bytes
    started: list[Started] = []
    finished: list[Finished] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    pooled: list[Pooled] = []
    drafted: list[Drafted] = []


class Draining(Wire, frozen=True, tag=5):
    """The engine accepts no new requests; those in flight may go on for at most timeout_s seconds."""

    timeout_s: float


class EngineStats(Wire, frozen=True):
    """Counters since start and gauges of now; token counts are exact, times are seconds.

    Attributes:
        worker_compute_s, worker_wait_s: time the worker spent in steps, and waiting for them, idle times
            included. As long as requests are always running, the latter is the engine's overhead.
        num_host_blocks, num_used_host_blocks: blocks of the CPU offload tier, and those that hold a prefix.
        num_saved_blocks, num_loaded_blocks: blocks moved from the pool to the CPU offload tier, and back.
        median_step_s: median time between the ends of recent steps; 0 before there were any.
        num_worker_restarts: how often the workers were lost and started again.
        num_drafted_rows: rows of steps that tokens were drafted for.
        draft_tokens, accepted_draft_tokens: tokens drafted, and those of them that counted.
        drafts: the same of each drafter that has drafted, by place.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_frontends: int = 0
    num_steps: int = 0
    last_step_age_s: float = 0.0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    finished: dict[str, int] = {}
    protocol_errors: int = 0
    block_size: int = 0
    worker_compute_s: float = 0.0
    worker_wait_s: float = 0.0
    num_host_blocks: int = 0
    num_used_host_blocks: int = 0
    num_saved_blocks: int = 0
    num_loaded_blocks: int = 0
    median_step_s: float = 0.0
    num_worker_restarts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    drafts: list[DraftCounts] = []
    num_drafted_rows: int = 0


class QueueStats(Wire, frozen=True):
    """The waiting queue now, and what it has rejected since start.

    Attributes:
        num_waiting_tokens: tokens of requests that have not run yet.
        queue_time_s: estimated wait of a new request, in whole seconds, at least 1.
        waiting: number of requests by what they wait for, the names of WaitReason in lower case.
        rejected: number of requests by the limit that was hit, "max_num_waiting" or "max_waiting_tokens".
        timeouts: number of requests ended by "timeout" and by "queue_timeout".
        num_tenants: tenants with a share of their own; 0 unless the policy is fair.
        max_loras: adapters in memory at once; 0 if the engine serves none.
        running_adapters, waiting_adapters: names of adapters that running and waiting requests use, sorted.
    """

    num_waiting_tokens: int = 0
    queue_time_s: int = 1
    waiting: dict[str, int] = {}
    rejected: dict[str, int] = {}
    timeouts: dict[str, int] = {}
    num_tenants: int = 0
    max_loras: int = 0
    running_adapters: list[str] = []
    waiting_adapters: list[str] = []


class Pong(Wire, frozen=True, tag=6):
    """The busy loop's answer to Ping; epoch 0 tells a frontend without a lease to send a Hello.

    Attributes:
        stalled: why no step can end at the moment, although the loop answers: a stopped or lost worker, a
            step that takes much longer than expected; "" if all is well.
    """

    nonce: int
    epoch: int
    draining: bool
    stats: EngineStats
    queue: QueueStats = msgspec.field(default_factory=QueueStats)
    stalled: str = ""


class RequestStage(enum.IntEnum):
    """Where a request in flight stands. PREEMPTED: it has run, and waits to go on."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2


class WaitReason(enum.IntEnum):
    """What a waiting request, or the one ahead of it at the head of the queue, waits for.

    ROWS: max_num_seqs requests are running; BLOCKS: the KV pool is full; TOKENS: the step's token budget, or
    its share for prefill, was used up; FAIR_SHARE: another waiting tenant has had less service; PREFIX: a
    running request is computing the prefix that both share; GRAMMAR: its grammar is being compiled;
    ADAPTER: its adapter is being loaded.
    """

    NONE = 0
    ROWS = 1
    BLOCKS = 2
    TOKENS = 3
    FAIR_SHARE = 4
    PREFIX = 5
    GRAMMAR = 6
    ADAPTER = 7


class RequestInfo(Wire, frozen=True):
    """One request in flight, as shown to an operator who asks why it waits.

    Attributes:
        position: how many are ahead of it in its queue (its tenant's under the fair policy); -1 if it runs.
        age_s: seconds since it arrived here.
        queue_time_s: seconds it waited, or has waited so far, before it first ran.
        num_draft_tokens, num_accepted_draft_tokens: tokens drafted for it here, and those of them that
            counted.
    """

    request_id: str
    stage: RequestStage
    waits_for: WaitReason = WaitReason.NONE
    position: int = -1
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    priority: int = 0
    age_s: float = 0.0
    queue_time_s: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0


class CallResult(Wire, frozen=True, tag=7):
    """Answer to Call.

    Attributes:
        requests: response to EXPLAIN_REQUESTS, the oldest first, at most 100.
        num_blocks: response to RESET_PREFIX_CACHE: how many KV blocks held a cached prefix.
        view: response to VIEW_ENGINE.
        status: HTTP status of the fault if the caller's arguments are at fault; else 500.
    """

    call_id: int
    ok: bool
    message: str = ""
    requests: list[RequestInfo] = []
    num_blocks: int = 0
    view: EngineView | None = None
    status: int = 500


class HandOver(Wire, frozen=True, tag=8):
    """The engine gives all requests of this frontend back, unfinished: they go on where there is an engine.

    It has forgotten them, and sends nothing more for them. This is no death: none of them is suspected.
    """

    reason: str


class Recovering(Wire, frozen=True, tag=9):
    """The engine lost its workers and starts them again; it keeps its requests.

    Sent once per stage and every second until Ready with the same epoch; new requests are rejected.
    """

    stage: str
    fraction: float


class AdaptersChanged(Wire, frozen=True, tag=10):
    """Which adapters requests may name; also follows Ready, if there are any.

    Attributes:
        adapters: all of them.
    """

    epoch: int
    adapters: list[AdapterInfo]


class LogLevelSet(Wire, frozen=True, tag=11):
    """A frontend has had the log level changed: that of the others, too."""

    level: LogLevelName


EngineMessage = (
    Loading
    | Ready
    | Refused
    | Rejected
    | StepOutputs
    | Draining
    | Pong
    | CallResult
    | HandOver
    | Recovering
    | AdaptersChanged
    | LogLevelSet
)

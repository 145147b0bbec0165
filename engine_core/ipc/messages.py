"""Every struct on a wire, both directions of both links, and the protocol version.

Each message is one msgpack array whose first element is its integer tag, so one closed union per direction
decodes it and no message names a class or a method. Columns (token ids, handles, rows) are packed
little-endian arrays inside `bytes`; `engine_core.ipc.codec` packs and unpacks them.

    link                       direction                 union
    api-frontend, engine-core  frontend -> engine        FrontendMessage
                               engine -> frontend        EngineMessage
    engine-core, worker        engine -> worker          ToWorkerMessage
                               worker -> engine          FromWorkerMessage
"""

from __future__ import annotations

import enum

import msgspec

from engine_core.sampling_params import SamplingParams

PROTOCOL_VERSION = 1


class _Wire(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Options shared by all wire structs."""


class FinishReason(enum.IntEnum):
    """Why a request ended.

    STOP: EOS, stop token or stop string; LENGTH: token or context limit; REPETITION: its output went round in
    a loop and it had asked to be ended then.
    """

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class ModelInfo(_Wire, frozen=True):
    """What engine and frontends need to know of the served model, read from its checkpoint by the worker.

    Attributes:
        path: model directory as the engine sees it.
        architecture: e.g. "LlamaForCausalLM".
        dtype: "float32", "bfloat16" or "float16".
        vocab_size: rows of the embedding; valid token ids are 0..vocab_size-1.
        max_model_len: longest sequence, prompt and output together, in tokens.
        eos_token_ids: ids that end a request unless ignore_eos.
        num_params: number of parameters.
        sliding_window: attention window in tokens, 0 for full attention.
    """

    path: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]
    num_params: int = 0
    sliding_window: int = 0


# --- api-frontend -> engine-core ---


class Hello(_Wire, frozen=True, tag=0):
    """First message of a frontend; also sent again after a silence, to renew or re-create its lease."""

    protocol_version: int
    frontend_id: str
    software_version: str


class AddRequest(_Wire, frozen=True, tag=1):
    """One sequence to generate.

    Attributes:
        handle: chosen by the frontend, 0..2**63-1, unique among its open requests; every output names it.
        request_id: for logs; opaque, at most 128 characters.
        prompt_token_ids: int32 column.
        sampling: the seed is always filled in; `n` is 1; stop strings stay at the frontend.
        resume_token_ids: int32 column of tokens already emitted; generation goes on after them.
        priority: lower runs first under the priority policy.
        tenant: owner of the prefix-cache namespace and of the fair share.
        cache_salt: narrows prefix-cache sharing further.
        timeout_s: seconds from arrival after which the engine ends the request; 0 means never.
        queue_timeout_s: seconds it may wait before it first runs; 0 takes the engine's default.
    """

    handle: int
    request_id: str
    prompt_token_ids: bytes
    sampling: SamplingParams
    resume_token_ids: bytes = b""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    timeout_s: float = 0.0
    queue_timeout_s: float = 0.0


class Abort(_Wire, frozen=True, tag=2):
    """End these requests now; unknown handles are ignored. No Finished follows."""

    handles: list[int]


class Ping(_Wire, frozen=True, tag=3):
    """Renews the frontend's lease; the busy loop itself answers with Pong."""

    nonce: int


class CallKind(enum.IntEnum):
    """The closed list of utility calls."""

    RESET_PREFIX_CACHE = 0
    CHECK_INTEGRITY = 1
    EXPLAIN_REQUESTS = 2


class Call(_Wire, frozen=True, tag=4):
    """A utility call, answered by CallResult with the same call_id.

    Attributes:
        request_ids: of EXPLAIN_REQUESTS; "ID" also names its parts "ID-0" and so on; none means all,
            those beyond the sixteenth are not looked at.
        tenant: of EXPLAIN_REQUESTS; only requests of this tenant are told of, of all if it is "".
    """

    call_id: int
    kind: CallKind
    request_ids: list[str] = []
    tenant: str = ""


FrontendMessage = Hello | AddRequest | Abort | Ping | Call

# --- engine-core -> api-frontend ---


class Loading(_Wire, frozen=True, tag=0):
    """Answer to Hello while the engine cannot serve yet; fraction is 0..1 of the weights loaded."""

    engine_id: str
    stage: str
    fraction: float


class Ready(_Wire, frozen=True, tag=1):
    """The engine serves. `epoch` identifies this life of the engine; outputs of other epochs are dropped.

    Attributes:
        lease_renewed: answer to a Hello of a frontend whose lease was alive: its requests go on. False: the
            engine holds no request of this frontend.
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


class Refused(_Wire, frozen=True, tag=2):
    """The engine does not talk to this frontend: version mismatch or identity in use; names both versions."""

    message: str
    protocol_version: int
    software_version: str


class Rejected(_Wire, frozen=True, tag=3):
    """One request was not taken. `code` and `status` are those of engine_core.errors."""

    handle: int
    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float = 0.0


class Started(_Wire, frozen=True):
    """A request left the queue for the first time."""

    handle: int
    num_cached_tokens: int
    queue_time_s: float


class Finished(_Wire, frozen=True):
    """A request ended on the engine; its last token, if any, is in the columns of the same StepOutputs.

    Attributes:
        stop_token_id: the stop token that matched, None for EOS and other reasons.
        num_cached_tokens: prompt tokens found in the prefix cache when it was first scheduled.
        num_preemptions: how often it was preempted.
        error_code, error_message: set when reason is ERROR.
    """

    handle: int
    reason: FinishReason
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error_code: str = ""
    error_message: str = ""
    error_status: int = 500


class TokenLogprobs(_Wire, frozen=True):
    """Logprobs of one token: element 0 of both columns is the token itself, then come the top k alternatives,
    then the request's m logprob_token_ids in their order (not for prompt tokens).

    Attributes:
        key: handle on the frontend link, row on the worker link.
        token_index: index of the token within the request's output (prompt logprobs: within the prompt).
        rank: 1-based rank of the token itself.
        token_ids: int32 column [1 + k + m].
        logprobs: float32 column [1 + k + m].
    """

    key: int
    token_index: int
    rank: int
    token_ids: bytes
    logprobs: bytes


class StepOutputs(_Wire, frozen=True, tag=4):
    """All outputs of one step for one frontend, in columns.

    Attributes:
        handles: int64 column [n].
        token_ids: int32 column [n].
        token_indices: int32 column [n]; index of each token within its request's output, so that gaps and
            repeats are detected.
        prompt_logprobs: for requests that asked; may arrive over several steps, before the first token.
    """

    epoch: int
    handles: bytes
    token_ids: bytes
    token_indices: bytes
    started: list[Started] = []
    finished: list[Finished] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []


class Draining(_Wire, frozen=True, tag=5):
    """The engine takes nothing new; running requests go on for at most timeout_s seconds."""

    timeout_s: float


class EngineStats(_Wire, frozen=True):
    """Counters since start and gauges of now; token counts are exact, times are seconds.

    Attributes:
        worker_compute_s, worker_wait_s: what the worker spent in steps and on waiting for them, idle times
            included. While requests run all the time, the second is what the engine costs.
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


class QueueStats(_Wire, frozen=True):
    """The waiting queue now, and what it turned away since start.

    Attributes:
        num_waiting_tokens: tokens of requests that have not run yet.
        queue_time_s: estimate of a newcomer's wait, in whole seconds, at least 1.
        waiting: requests by what they wait for, names of WaitReason in lower case.
        rejected: by the bound that was hit, "max_num_waiting" or "max_waiting_tokens".
        timeouts: ended by "timeout" or "queue_timeout".
        num_tenants: tenants with a share of their own; 0 unless the policy is fair.
    """

    num_waiting_tokens: int = 0
    queue_time_s: int = 1
    waiting: dict[str, int] = {}
    rejected: dict[str, int] = {}
    timeouts: dict[str, int] = {}
    num_tenants: int = 0


class Pong(_Wire, frozen=True, tag=6):
    """Answer of the busy loop to Ping; epoch 0 tells a frontend without a lease that it must say Hello."""

    nonce: int
    epoch: int
    draining: bool
    stats: EngineStats
    queue: QueueStats = msgspec.field(default_factory=QueueStats)


class RequestStage(enum.IntEnum):
    """Where an open request stands. PREEMPTED: it ran, and waits to go on."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2


class WaitReason(enum.IntEnum):
    """What a waiting request waits for, or the one at the head before it.

    ROWS: max_num_seqs run; BLOCKS: the KV pool is full; TOKENS: the step's tokens, or those for prefill, were
    spent; FAIR_SHARE: its tenant has had more than another one that waits; PREFIX: a running request computes
    the beginning that both share.
    """

    NONE = 0
    ROWS = 1
    BLOCKS = 2
    TOKENS = 3
    FAIR_SHARE = 4
    PREFIX = 5


class RequestInfo(_Wire, frozen=True):
    """One open request, for people who ask why it waits.

    Attributes:
        position: how many come before it in its queue, its tenant's under the fair policy; -1 if it runs.
        age_s: seconds since it arrived here.
        queue_time_s: seconds it waited, or has waited so far, before it first ran.
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


class CallResult(_Wire, frozen=True, tag=7):
    """Answer to Call.

    Attributes:
        requests: answer to EXPLAIN_REQUESTS, the oldest first, at most 100.
    """

    call_id: int
    ok: bool
    message: str = ""
    requests: list[RequestInfo] = []


EngineMessage = Loading | Ready | Refused | Rejected | StepOutputs | Draining | Pong | CallResult

# --- engine-core -> worker ---


class InitKVCache(_Wire, frozen=True, tag=0):
    """Allocate the paged KV cache; answered by KVCacheReady."""

    num_blocks: int


class NewRow(_Wire, frozen=True):
    """A request that enters the worker's batch, whole: first time, or again after preemption.

    Attributes:
        row: row of the persistent batch, 0..max_num_seqs-1; free until now.
        token_ids: int32 column of all known tokens (prompt, then output).
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many have their KV in the cache already (prefix hits).
        block_ids: int32 column, the row's block table so far, from place first_block on.
        sampling: never has n > 1; the seed is set.
        first_block: blocks that have left the window of a sliding-window model; no query will see them.
    """

    row: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: bytes
    sampling: SamplingParams
    first_block: int = 0


class SchedulerOutput(_Wire, frozen=True, tag=1):
    """One step. Only what changed travels; the worker keeps the batch.

    A row samples a token when the step computes its last known token; the worker appends it to the row
    itself, so decode steps carry no token ids. Apply in this order: freed_rows, new_rows, block columns, then
    run the scheduled columns in the order given.

    Attributes:
        step: counter, answered by the same number.
        rows: int32 column [n] of the rows that compute in this step.
        num_tokens: int32 column [n], tokens each of them computes (>= 1).
        freed_rows: int32 column; rows that left the batch (finished, aborted, preempted).
        block_rows, block_ids: int32 columns [m]; append block_ids[i] to the block table of block_rows[i].
    """

    step: int
    rows: bytes
    num_tokens: bytes
    new_rows: list[NewRow] = []
    freed_rows: bytes = b""
    block_rows: bytes = b""
    block_ids: bytes = b""


class Shutdown(_Wire, frozen=True, tag=2):
    """End the worker process in order."""


ToWorkerMessage = InitKVCache | SchedulerOutput | Shutdown

# --- worker -> engine-core ---


class WorkerHello(_Wire, frozen=True, tag=0):
    """First message of a worker."""

    protocol_version: int
    software_version: str
    rank: int
    pid: int


class LoadProgress(_Wire, frozen=True, tag=1):
    """Bytes of weights loaded so far; sent at most ten times a second."""

    loaded_bytes: int
    total_bytes: int


class WorkerReady(_Wire, frozen=True, tag=2):
    """The weights are loaded.

    Attributes:
        block_bytes: bytes one KV block takes over all layers of this rank.
        available_bytes: memory this rank would give to the KV cache when no size is configured.
        load_s: seconds it took to load.
    """

    model: ModelInfo
    block_bytes: int
    available_bytes: int
    load_s: float


class KVCacheReady(_Wire, frozen=True, tag=3):
    """The KV cache is allocated and a warm-up pass has run."""

    num_blocks: int


class RowError(_Wire, frozen=True):
    """A fault that belongs to one row; the engine ends that request only. `status` is the HTTP status."""

    row: int
    code: str
    message: str
    status: int = 500


class ModelRunnerOutput(_Wire, frozen=True, tag=4):
    """Result of one step, in columns.

    Attributes:
        rows, token_ids: int32 columns [m], the rows that sampled and what they sampled.
        logprobs, prompt_logprobs: `key` is the row.
        errors: rows that failed; they sampled nothing and stay until freed.
        compute_s: seconds the step took on the worker.
        wait_s: seconds the worker waited for the step after it had sent the answer before.
    """

    step: int
    rows: bytes
    token_ids: bytes
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    errors: list[RowError] = []
    compute_s: float = 0.0
    wait_s: float = 0.0


class WorkerFailed(_Wire, frozen=True, tag=5):
    """The worker ends: checkpoint refused or device fault; `code` is one of engine_core.errors."""

    code: str
    message: str


FromWorkerMessage = WorkerHello | LoadProgress | WorkerReady | KVCacheReady | ModelRunnerOutput | WorkerFailed

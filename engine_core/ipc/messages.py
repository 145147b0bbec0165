"""Every struct between api-frontend and engine-core, both directions; engine_core.ipc.wire says how."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from splitserve.engine_core.ipc.wire import ModelInfo, TokenLogprobs, Wire
from splitserve.engine_core.sequence_sampling import SequenceSampling

# Of one message: as many sequences as one frontend may have open on an engine.
MAX_HANDLES = 16_384
# Those beyond the sixteenth are not looked at.
MAX_REQUEST_IDS = 256


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


# --- api-frontend -> engine-core ---


class Hello(Wire, frozen=True, tag=0):
    """First message of a frontend; also sent again after a silence, to renew or re-create its lease."""

    protocol_version: int
    frontend_id: str
    software_version: str


class AddRequest(Wire, frozen=True, tag=1):
    """One sequence to generate.

    Attributes:
        handle: chosen by the frontend, 0..2**63-1, unique among its requests; all outputs name it.
        request_id: for logs; opaque, at most 128 characters.
        prompt_token_ids: int32 column.
        sampling: the seed is always filled in.
        resume_token_ids: int32 column of tokens already emitted; generation goes on after them.
        priority: lower runs first under the priority policy.
        tenant: owner of the prefix-cache namespace and of the fair share.
        cache_salt: narrows prefix-cache sharing further.
        timeout_s: seconds from arrival after which the engine ends the request; 0 means never.
        queue_timeout_s: seconds it may wait before it, or another sequence of its request, first runs; 0
            takes the engine's default.
        streams: every token is wanted at once. Otherwise the engine may gather tokens, but for the first and
            the last, for engine_core.scheduler.output.GATHER_S.
        more: another sequence of the same client's request follows directly; all of them are taken or refused
            together, when the last has come, and have one tenant and priority.
        continues: part of a client's request that has run already, as the later steps of a beam search are.
            It is refused only beyond twice the bounds of the queue, and no queue timeout ends it.
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


class Abort(Wire, frozen=True, tag=2):
    """End these requests now; unknown handles are ignored. No Finished follows."""

    handles: Annotated[list[int], msgspec.Meta(max_length=MAX_HANDLES)]


class Ping(Wire, frozen=True, tag=3):
    """Renews the frontend's lease; the busy loop itself answers with Pong."""

    nonce: int


class CallKind(enum.IntEnum):
    """The closed list of utility calls."""

    EXPLAIN_REQUESTS = 0


class Call(Wire, frozen=True, tag=4):
    """A utility call, answered by CallResult with the same call_id.

    Attributes:
        request_ids: of EXPLAIN_REQUESTS; "ID" also names its parts "ID-0" and so on; none means all,
            those beyond the sixteenth are not looked at.
        tenant: of EXPLAIN_REQUESTS; only requests of this tenant are told of, of all if it is "".
    """

    call_id: int
    kind: CallKind
    request_ids: Annotated[list[str], msgspec.Meta(max_length=MAX_REQUEST_IDS)] = []
    tenant: str = ""


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
        lease_renewed: response to a Hello of a frontend whose lease was alive: its requests go on. False: the
            engine holds no request of this frontend.
        max_num_waiting: requests that may wait beside max_num_seqs that run.
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
    """One request was not taken. `code` and `status` are those of engine_core.errors."""

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
        retry_after_s: of a request that made room for another, when to try again.
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


class StepOutputs(Wire, frozen=True, tag=4):
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


class Draining(Wire, frozen=True, tag=5):
    """The engine takes nothing new; running requests go on for at most timeout_s seconds."""

    timeout_s: float


class EngineStats(Wire, frozen=True):
    """Counters since start and gauges of now; token counts are exact, times are seconds.

    Attributes:
        worker_compute_s, worker_wait_s: what the worker spent in steps and on waiting for them, idle times
            included. While requests run all the time, the second is what the engine costs.
        num_host_blocks, num_used_host_blocks: blocks of the CPU offload tier, and those that hold a prefix.
        num_saved_blocks, num_loaded_blocks: blocks moved from the pool to the CPU offload tier, and back.
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


class QueueStats(Wire, frozen=True):
    """The waiting queue now, and what it turned away since start.

    Attributes:
        num_waiting_tokens: tokens of requests that have not run yet.
        queue_time_s: estimated wait of a new request, in whole seconds, at least 1.
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


class Pong(Wire, frozen=True, tag=6):
    """Answer of the busy loop to Ping; epoch 0 tells a frontend without a lease that it must say Hello."""

    nonce: int
    epoch: int
    draining: bool
    stats: EngineStats
    queue: QueueStats = msgspec.field(default_factory=QueueStats)


class RequestStage(enum.IntEnum):
    """Where a request in flight stands. PREEMPTED: it ran, and waits to go on."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2


class WaitReason(enum.IntEnum):
    """What a waiting request waits for, or the one at the head before it.

    ROWS: max_num_seqs run; BLOCKS: the KV pool is full; TOKENS: the step's tokens, or those for prefill, were
    spent; FAIR_SHARE: its tenant has had more than another one that waits; PREFIX: a running request computes
    the prefix that both share.
    """

    NONE = 0
    ROWS = 1
    BLOCKS = 2
    TOKENS = 3
    FAIR_SHARE = 4
    PREFIX = 5


class RequestInfo(Wire, frozen=True):
    """One request in flight, for people who ask why it waits.

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


class CallResult(Wire, frozen=True, tag=7):
    """Answer to Call.

    Attributes:
        requests: response to EXPLAIN_REQUESTS, the oldest first, at most 100.
    """

    call_id: int
    ok: bool
    message: str = ""
    requests: list[RequestInfo] = []


EngineMessage = Loading | Ready | Refused | Rejected | StepOutputs | Draining | Pong | CallResult

"""Every struct between engine-core and worker, both directions; engine_core.ipc.wire says how."""

from __future__ import annotations

from splitserve.engine_core.ipc.wire import ModelInfo, TokenLogprobs, Wire
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.settings.worker_settings import WorkerSettings

# --- engine-core -> worker ---


class InitKVCache(Wire, frozen=True, tag=0):
    """Allocate the paged KV cache; answered by KVCacheReady.

    Attributes:
        num_blocks: blocks of the pool that steps compute in.
        num_host_blocks: blocks of the CPU offload tier, which only moves read and write; 0 for no tier.
    """

    num_blocks: int
    num_host_blocks: int = 0


class NewRow(Wire, frozen=True):
    """A request that enters the worker's batch, whole: first time, or again after preemption.

    Attributes:
        row: row of the persistent batch, 0..max_num_seqs-1; free until now.
        token_ids: int32 column of all known tokens (prompt, then output).
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many have their KV in the cache already (prefix hits).
        block_ids: int32 column, the row's block table so far, from place first_block on.
        sampling: the seed is set.
        first_block: blocks that have left the window of a sliding-window model; no query will see them.
    """

    row: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: bytes
    sampling: SequenceSampling
    first_block: int = 0


class SchedulerOutput(Wire, frozen=True, tag=1):
    """One step. Only what changed travels; the worker keeps the batch.

    A row samples a token when the step computes its last known token; the worker appends it to the row
    itself, so decode steps carry no token ids. Apply in this order: freed_rows, new_rows, block columns,
    moves, then run the scheduled columns in the order given.

    Attributes:
        step: counter, answered by the same number.
        rows: int32 column [n] of the rows that compute in this step.
        num_tokens: int32 column [n], tokens each of them computes (>= 1).
        freed_rows: int32 column; rows that left the batch (finished, aborted, preempted).
        block_rows, block_ids: int32 columns [m]; append block_ids[i] to the block table of block_rows[i].
        moves_from, moves_to: int32 columns [k]; copy the whole content of place moves_from[i] to place
            moves_to[i], one after the other, before anything of this step is written. Places 0..num_blocks-1
            are the pool's blocks, num_blocks + i is host block i.
        last_token_ids: int32 column [n], for a pipeline only, whose first stages do not sample: what each of
            `rows` sampled last. It counts for a row that has computed all the tokens it knows.
    """

    step: int
    rows: bytes
    num_tokens: bytes
    new_rows: list[NewRow] = []
    freed_rows: bytes = b""
    block_rows: bytes = b""
    block_ids: bytes = b""
    moves_from: bytes = b""
    moves_to: bytes = b""
    last_token_ids: bytes = b""


class Shutdown(Wire, frozen=True, tag=2):
    """End the worker process in order."""


class Configure(Wire, frozen=True, tag=3):
    """How to compute: the engine's answer to WorkerHello, before anything is loaded.

    Attributes:
        settings: those of the engine that workers need; a map, by name.
        num_local_ranks: ranks that share the worker's machine, its cores and memory.
        exchange_timeout_s: longest wait for the other ranks within a step.
    """

    settings: WorkerSettings
    num_local_ranks: int = 1
    exchange_timeout_s: float = 60.0


ToWorkerMessage = Configure | InitKVCache | SchedulerOutput | Shutdown

# --- worker -> engine-core ---


class WorkerHello(Wire, frozen=True, tag=0):
    """First message of a worker; answered by Configure."""

    protocol_version: int
    software_version: str
    rank: int
    pid: int


class LoadProgress(Wire, frozen=True, tag=1):
    """Bytes of weights loaded so far; sent at most ten times a second."""

    loaded_bytes: int
    total_bytes: int


class WorkerReady(Wire, frozen=True, tag=2):
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


class KVCacheReady(Wire, frozen=True, tag=3):
    """The KV cache is allocated and a warm-up pass has run.

    Attributes:
        move_block_ns: nanoseconds one move between pool and offload tier takes, measured; 0 without a tier.
    """

    num_blocks: int
    move_block_ns: int = 0


class RowError(Wire, frozen=True):
    """A fault that belongs to one row; the engine ends that request only. `status` is the HTTP status.

    With the code of DeviceMemoryError nothing is wrong with the row: its step did not fit the memory, and the
    engine lets it enter again later.
    """

    row: int
    code: str
    message: str
    status: int = 500


class ModelRunnerOutput(Wire, frozen=True, tag=4):
    """Result of one step, in columns.

    Attributes:
        rows, token_ids: int32 columns [m], the rows that sampled and what they sampled.
        logprobs, prompt_logprobs: `key` is the row.
        errors: rows that failed; they sampled nothing and stay until freed.
        compute_s: seconds the step took on the worker.
        wait_s: seconds the worker waited for the step after it had sent the answer before.
        move_s: seconds of compute_s that the moves took, or enqueuing them where they run beside the step.
    """

    step: int
    rows: bytes
    token_ids: bytes
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    errors: list[RowError] = []
    compute_s: float = 0.0
    wait_s: float = 0.0
    move_s: float = 0.0


class WorkerFailed(Wire, frozen=True, tag=5):
    """The worker ends: checkpoint refused or device fault; `code` is one of engine_core.errors."""

    code: str
    message: str


FromWorkerMessage = WorkerHello | LoadProgress | WorkerReady | KVCacheReady | ModelRunnerOutput | WorkerFailed

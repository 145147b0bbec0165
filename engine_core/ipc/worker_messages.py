"""Which messages pass between engine-core and worker? See engine_core.ipc.wire for how they travel."""

from __future__ import annotations

from splitserve.engine_core.ipc.wire import (
    LogLevelName,
    ModelInfo,
    Pooled,
    TokenLogprobs,
    Wire,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.settings.worker_settings import WorkerSettings

# Slot of a row that has none.
NO_ADAPTER = -1

# --- engine-core -> worker ---


class InitKVCache(Wire, frozen=True, tag=0):
    """Allocate the paged KV cache; answered by KVCacheReady.

    Attributes:
        num_blocks: blocks of the pool, which steps read and write.
        num_host_blocks: blocks of the CPU offload tier, which only moves read and write; 0 for no tier.
    """

    num_blocks: int
    num_host_blocks: int = 0


class NewRow(Wire, frozen=True):
    """All of a request that enters the worker's batch: for the first time, or again after preemption.

    Attributes:
        row: row of the persistent batch, 0..max_num_seqs-1; free until now.
        token_ids: int32 column of all known tokens (prompt, then output).
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many already have their KV in the cache (prefix hits).
        block_ids: int32 column, the row's block table so far, from index first_block on. With window groups
            (ModelInfo) it is that of the layers that see all tokens, and first_block is 0.
        sampling: the seed is set.
        first_block: number of first blocks that have left a sliding window; no query will see them.
        second_at: index of the first token of the second text of a pair; 0 if there is none.
        pools_tokens: the vector of each token is wanted.
        max_num_computed_tokens: tokens of the whole sequence that ever need computing. Without drafts no step
            goes beyond; with them the worker sees to it.
        adapter: slot of its adapter, which AdapterLoaded has said to be there; -1 for none.
        predicted_token_ids: int32 column of what its output is expected to be like, for drafts.
        window_block_ids: int32 column, a block of each window group for each index of the table from
            first_window_block on; -1 for one that has left the window of its group.
        first_window_block: number of first blocks that have left the windows of all these groups.
        namespace: 16 bytes, the same for requests that may know of each other; comes with speculation only.
    """

    row: int
    token_ids: bytes
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: bytes
    sampling: SequenceSampling
    first_block: int = 0
    second_at: int = 0
    pools_tokens: bool = False
    max_num_computed_tokens: int = 2**31 - 1
    adapter: int = NO_ADAPTER
    predicted_token_ids: bytes = b""
    window_block_ids: bytes = b""
    first_window_block: int = 0
    namespace: bytes = b""


class StageDrafts(Wire, frozen=True):
    """What the stages of a pipeline with speculation are told of the rows of a step.

    Attributes:
        num_known_tokens: int32 column [n], tokens of each row before the step. Those before the last one that
            a stage does not know are drafts that it has computed in the row's step before.
        counts: int32 column [n], drafts that each row computes behind its tokens; empty if there are none.
        token_ids: int32 column of them, one row after the other.
    """

    num_known_tokens: bytes
    counts: bytes = b""
    token_ids: bytes = b""


class RowDrafts(Wire, frozen=True):
    """What the last stage of a pipeline has drafted.

    Attributes:
        counts: int32 column [m], tokens of each row.
        token_ids: int32 column, one row after the other.
    """

    counts: bytes
    token_ids: bytes


class SchedulerOutput(Wire, frozen=True, tag=1):
    """One step. Only changes are sent; the worker keeps the batch.

    A row samples a token when the step computes its last known token; the worker appends it to the row
    itself, so decode steps carry no token ids. Apply in this order: freed_rows, new_rows, block columns,
    moves; then run the scheduled rows in the order given.

    With drafts (docs/speculation.md) a row may turn out to be further than the engine knew when it planned
    the step: `num_tokens` counts from where the row is. One that has reached its max_num_computed_tokens
    by then computes and samples nothing.

    Attributes:
        step: step number; the output carries the same one.
        rows: int32 column [n] of the rows that compute in this step.
        num_tokens: int32 column [n], tokens each of them computes (>= 1).
        freed_rows: int32 column; rows that left the batch (finished, aborted, preempted).
        block_rows, block_ids: int32 columns [m]; append block_ids[i] to the block table of block_rows[i].
            With G window groups block_ids is [m, 1 + G]: the other blocks of i are appended to the tables of
            these groups.
        moves_from, moves_to: int32 columns [k]; copy the whole content of place moves_from[i] to place
            moves_to[i], one after the other, before this step writes anything. Places 0..num_blocks-1
            are the pool's blocks, num_blocks + i is host block i.
        last_token_ids: int32 column [n], only in a pipeline, where the first stages do not sample: the token
            each of `rows` sampled last. It matters for rows that have computed all tokens they know.
        max_drafts: each row that samples may compute up to so many tokens more, drafted by the worker, which
            count if they are what it samples. Its blocks and max_num_computed_tokens limit them further.
            In a pipeline: so many may be drafted for it behind this step, to be computed in its next one.
        drafts: of `rows`; only in a pipeline with speculation.
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
    max_drafts: int = 0
    drafts: StageDrafts | None = None


class Shutdown(Wire, frozen=True, tag=2):
    """Ask the worker process for an orderly shutdown."""


class Configure(Wire, frozen=True, tag=3):
    """The worker's configuration: the engine's answer to WorkerHello, before anything is loaded.

    Attributes:
        settings: the engine's settings that workers need, by name.
        num_local_ranks: ranks that share the worker's machine, its cores and memory.
        exchange_timeout_s: longest wait for the other ranks within a step.
        worker_wait_s: how long the worker, once it serves, waits for a successor if its engine dies; 0 for
            not at all.
        fit: load nothing, and answer with MemoryNeed.
    """

    settings: WorkerSettings
    num_local_ranks: int = 1
    exchange_timeout_s: float = 60.0
    worker_wait_s: float = 0.0
    fit: bool = False


class Adopt(Wire, frozen=True, tag=4):
    """The answer to WorkerWaiting: this engine takes the worker over.

    The worker then says hello. It answers Configure and InitKVCache, which are the ones it has been sent by
    its first engine, with what it has: nothing is loaded, allocated or run.

    Attributes:
        engine_pid: of the engine, which is not the worker's parent; the worker watches it.
    """

    engine_pid: int


class CompileGrammar(Wire, frozen=True, tag=5):
    """Have a grammar ready before a row needs it; sent to the rank that samples, answered by GrammarCompiled.

    Attributes:
        number: chosen by the engine, which finds the answer by it.
        grammar: see SequenceSampling.
    """

    number: int
    grammar: str


class LoadAdapter(Wire, frozen=True, tag=6):
    """Put an adapter into a slot that no row uses; sent to every rank, answered by AdapterLoaded.

    Attributes:
        number: chosen by the engine, which finds the answer by it.
        slot: 0..num_adapter_slots-1; what was in it is gone.
        path: directory of the adapter, as the workers see it.
    """

    number: int
    slot: int
    path: str


class SetLogLevel(Wire, frozen=True, tag=7):
    """Log what is at least as severe as this from now on; nothing answers it."""

    level: LogLevelName


class ReleaseKVCache(Wire, frozen=True, tag=8):
    """Free the KV cache with everything that steps need, until InitKVCache; answered by MemoryReleased."""


ToWorkerMessage = (
    Configure
    | InitKVCache
    | SchedulerOutput
    | Shutdown
    | Adopt
    | CompileGrammar
    | LoadAdapter
    | SetLogLevel
    | ReleaseKVCache
)

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
        available_bytes: memory this rank would give to the KV cache if no size is configured.
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
    """An error of a single row; the engine ends only that request. `status` is the HTTP status.

    With the code of DeviceMemoryError nothing is wrong with the row: its step did not fit into memory, and
    the engine admits it again later.
    """

    row: int
    code: str
    message: str
    status: int = 500


class DrafterEnds(Wire, frozen=True):
    """Which drafts of a step one drafter made: each row's from the end of the drafter before to its own.

    Attributes:
        method: its name.
        ends: int32 column [m], of the output's rows: their drafts once it had drafted, computed or not.
    """

    method: str
    ends: bytes


class ModelRunnerOutput(Wire, frozen=True, tag=4):
    """Result of one step, in columns.

    Attributes:
        rows: int32 column [m], the rows that sampled.
        token_ids: int32 column, what they sampled: a run of tokens for each of `rows`, one after the other.
        run_lengths: int32 column [m], tokens of each run; empty if all are 1. 0 for a row that had
            ended by then, which the engine learns of earlier.
        num_drafts: int32 column [m], drafted tokens of each that were computed; comes with run_lengths.
        logprobs, prompt_logprobs: `key` is the row; those of a run are in its order.
        errors: rows that failed; they sampled nothing and stay until freed.
        compute_s: seconds the step took on the worker.
        wait_s: seconds the worker waited for this step after it had sent its last output.
        move_s: seconds of compute_s spent on moves, or on enqueuing them if they overlap with the step.
        pooled: of a model that makes vectors, those of the rows that would have sampled, with token 0;
            `key` is the row.
        drafters: that drafted in the step, in their order.
        draft_rest: for how many steps behind this one no row will draft, unless others enter.
        next_drafts: of `rows`, behind what they sampled, only in a pipeline; None if there are none.
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
    pooled: list[Pooled] = []
    run_lengths: bytes = b""
    num_drafts: bytes = b""
    drafters: list[DrafterEnds] = []
    draft_rest: int = 0
    next_drafts: RowDrafts | None = None


class WorkerFailed(Wire, frozen=True, tag=5):
    """The worker exits: checkpoint refused or device fault; `code` is one of engine_core.errors."""

    code: str
    message: str


class WorkerWaiting(Wire, frozen=True, tag=6):
    """The engine of this worker is gone; it has model, KV cache and an empty batch, and waits for another.

    Attributes:
        num_steps: steps it has computed in its life; the same for all ranks unless some missed one.
    """

    rank: int
    pid: int
    num_steps: int


class GrammarCompiled(Wire, frozen=True, tag=7):
    """A grammar is ready, or cannot be compiled: then `error` says why."""

    number: int
    error: str = ""


class AdapterLoaded(Wire, frozen=True, tag=8):
    """An adapter is in its slot, or cannot be: then `error` says why, and the slot is empty.

    Attributes:
        digest: hex SHA-256 of its files.
    """

    number: int
    digest: str = ""
    error: str = ""


class MemoryNeed(Wire, frozen=True, tag=9):
    """What a model will take of this rank's memory: the answer to Configure with `fit`, before Shutdown.

    Attributes:
        model: what will be served, without what a loaded model alone knows.
        device: "cpu" or "cuda".
        free_bytes: that this rank may take.
        weights_bytes: of the weights as they are kept in memory, and of the adapters' slots.
        activation_bytes: of a step of the largest size, estimated.
        block_bytes: bytes one KV block takes over all layers of this rank.
        available_bytes: memory this rank would give to the KV cache if no size is configured.
        alternatives: weights_bytes by other values of --quantization.
    """

    model: ModelInfo
    device: str
    free_bytes: int
    weights_bytes: int
    activation_bytes: int
    block_bytes: int
    available_bytes: int
    alternatives: dict[str, int] = {}


class MemoryReleased(Wire, frozen=True, tag=10):
    """What an engine that falls asleep gives up is free: the KV cache, or the workers that were ended."""


FromWorkerMessage = (
    WorkerHello
    | LoadProgress
    | WorkerReady
    | KVCacheReady
    | ModelRunnerOutput
    | WorkerFailed
    | WorkerWaiting
    | GrammarCompiled
    | AdapterLoaded
    | MemoryNeed
    | MemoryReleased
)

"""GET /debug/engines: what every engine shows to who watches it: rows, blocks, last steps, tenants."""

from __future__ import annotations

import base64

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import EngineStats, QueueStats
from splitserve.engine_core.ipc.wire import EngineView, StepColumns, TenantShare
from splitserve.frontend.engines.status import STARTING, EngineStatus
from splitserve.frontend.metrics.engines import engine_names
from splitserve.frontend.openai.context import ApiContext, json_response

# The page asks every second; an engine in a step that takes longer is shown by its last answer to a ping.
TIMEOUT_S = 1.0


class BlockUse(msgspec.Struct, frozen=True):
    """The KV pool of an engine; the first four figures count blocks.

    Attributes:
        in_use: held by sequences that run.
        cached: free, but they hold a prefix until they are needed.
        free: hold nothing.
        total: of the three.
        block_size: tokens of a block.
        host_used, host_total: blocks of the CPU offload tier.
        map: base64 of one byte per cell: 0 free, 1 cached, 2 used, 3 used by several sequences.
        blocks_per_cell: a cell stands for so many blocks, of which it is the first.
    """

    in_use: int
    cached: int
    free: int
    total: int
    block_size: int
    host_used: int
    host_total: int
    map: str
    blocks_per_cell: int


class RecentStepList(msgspec.Struct, frozen=True):
    """Steps of the last 2.5 seconds, at most 1,024; the columns have one value per step.

    Attributes:
        first_step: number of the first; the others follow it.
        ago_us: microseconds since it ended.
        time_us: how long it took.
        rows: that it computed.
        prefill_tokens, decode_tokens: tokens of rows that computed several, and of those that computed one.
        preemptions: between it and the step before.
    """

    first_step: int
    ago_us: list[int]
    time_us: list[int]
    rows: list[int]
    prefill_tokens: list[int]
    decode_tokens: list[int]
    preemptions: list[int]


class ShareOfTenant(msgspec.Struct, frozen=True):
    """Sequences of a tenant, or of `others` other tenants together, whose names are not the caller's to know.

    Attributes:
        tenant: "" for requests without one, and for the others.
        others: 0 for a tenant.
    """

    tenant: str
    running: int
    waiting: int
    others: int


class EngineTotals(msgspec.Struct, frozen=True):
    """Counters of an engine since its start."""

    steps: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    worker_restarts: int


class EngineRows(msgspec.Struct, frozen=True):
    """Sequences of an engine now; `waiting_for` counts those that wait by what they wait for."""

    running: int
    waiting: int
    waiting_for: dict[str, int]
    max_running: int


class WatchedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as far as it is known: parts are null before its first answer, or while it does not reply.

    Attributes:
        state: as in /health.
        epoch: changes when the engine is started anew, and step numbers begin again.
    """

    engine: str
    state: str
    epoch: str
    stalled: str | None
    models: list[str]
    loading_stage: str | None = None
    loading_fraction: float | None = None
    num_frontends: int | None = None
    rows: EngineRows | None = None
    totals: EngineTotals | None = None
    blocks: BlockUse | None = None
    steps: RecentStepList | None = None
    tenants: list[ShareOfTenant] | None = None


class EngineViewList(msgspec.Struct, frozen=True):
    """All engines, those that are lost included."""

    engines: list[WatchedEngine]


async def view_engines(context: ApiContext, request: Request) -> Response:
    """Show all engines; the caller's tenant by name, or every tenant if no API keys are set."""
    tenant: str = getattr(request.state, "tenant", "")
    views = await context.pool.view(tenant, TIMEOUT_S)
    statuses = context.pool.status()
    names = engine_names(statuses)
    return json_response(
        EngineViewList(
            [
                watched(name, status, views.get(status.address))
                for name, status in zip(names, statuses, strict=True)
            ]
        )
    )


def watched(name: str, status: EngineStatus, view: EngineView | None) -> WatchedEngine:
    """Put together what is known of an engine; a view that cannot be read counts as none."""
    stats = status.stats
    is_starting = status.state in STARTING
    try:
        steps = _steps(view.steps) if view else None
    except ProtocolError:
        view = steps = None
    return WatchedEngine(
        engine=name,
        state=status.state,
        epoch=str(status.epoch),
        stalled=status.stalled or None,
        models=list(status.model.names) if status.model else [],
        loading_stage=status.stage if is_starting else None,
        loading_fraction=status.fraction if is_starting else None,
        num_frontends=stats.num_frontends if stats else None,
        rows=_rows(stats, status.queue, view) if stats else None,
        totals=_totals(stats) if stats else None,
        blocks=_blocks(stats, view) if stats and view else None,
        steps=steps,
        tenants=[_share(share) for share in view.tenants] if view else None,
    )


def _rows(stats: EngineStats, queue: QueueStats | None, view: EngineView | None) -> EngineRows:
    waiting_for = queue.waiting if queue else {}
    return EngineRows(stats.num_running, stats.num_waiting, waiting_for, view.max_num_seqs if view else 0)


def _totals(stats: EngineStats) -> EngineTotals:
    return EngineTotals(
        steps=stats.num_steps,
        preemptions=stats.num_preemptions,
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generation_tokens,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
        worker_restarts=stats.num_worker_restarts,
    )


def _blocks(stats: EngineStats, view: EngineView) -> BlockUse:
    # The statistics are up to half a second older.
    cached = min(view.blocks.num_idle_cached, stats.num_free_blocks)
    return BlockUse(
        in_use=stats.num_blocks - stats.num_free_blocks,
        cached=cached,
        free=stats.num_free_blocks - cached,
        total=stats.num_blocks,
        block_size=stats.block_size,
        host_used=stats.num_used_host_blocks,
        host_total=stats.num_host_blocks,
        map=base64.b64encode(view.blocks.states).decode(),
        blocks_per_cell=view.blocks.blocks_per_cell,
    )


def _steps(steps: StepColumns) -> RecentStepList:
    """Unpack the columns.

    Raises:
        ProtocolError: one is torn.
    """
    return RecentStepList(
        steps.first_step,
        *(
            unpack_int32(column).tolist()
            for column in (
                steps.ago_us,
                steps.time_us,
                steps.num_rows,
                steps.num_prefill_tokens,
                steps.num_decode_tokens,
                steps.num_preemptions,
            )
        ),
    )


def _share(share: TenantShare) -> ShareOfTenant:
    return ShareOfTenant(share.tenant, share.num_running, share.num_waiting, share.num_others)

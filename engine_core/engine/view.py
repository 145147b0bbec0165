"""What does somebody see who watches the engine? Its blocks one by one, last steps, tenants' shares."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from splitserve.engine_core.engine.recent_steps import RecentSteps
from splitserve.engine_core.ipc.wire import BlockMap, EngineView, TenantShare
from splitserve.engine_core.kv_cache.block_pool import BlockPool
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.scheduler import Scheduler

# A larger pool is shown by every n-th block, so that looking costs the same however large it is.
MAX_CELLS = 4096
MAX_TENANTS = 64


def view_engine(
    scheduler: Scheduler, steps: RecentSteps, requests: Iterable[Request], tenant: str, now_s: float
) -> EngineView:
    """Describe an engine; O(blocks shown, requests in flight, rows of recent steps).

    Args:
        scheduler: of the engine.
        steps: its last ones.
        requests: all in flight.
        tenant: who asks: the others are summed up; "" for an operator, who sees all.
        now_s: the time.
    """
    return EngineView(
        blocks=map_blocks(scheduler.kv.cache.pool),
        steps=steps.columns(now_s),
        tenants=tenant_shares(requests, tenant),
        max_num_seqs=len(scheduler.running.requests),
    )


def map_blocks(pool: BlockPool) -> BlockMap:
    """Return the state of every block, or of every n-th if there are more than MAX_CELLS."""
    stride = max(1, -(-pool.num_blocks // MAX_CELLS))
    references = np.array(pool.ref_counts[::stride], np.int64)
    cached = np.frombuffer(pool.cached_flags(stride), np.uint8)
    states = np.where(references > 0, 1 + np.minimum(references, 2), cached).astype(np.uint8)
    return BlockMap(states=states.tobytes(), blocks_per_cell=stride, num_idle_cached=pool.num_idle_cached)


def tenant_shares(requests: Iterable[Request], tenant: str) -> list[TenantShare]:
    """Return who has how many rows and waiting sequences, the largest first; beyond MAX_TENANTS as one."""
    running: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for request in requests:
        counts = waiting if request.state is RequestState.WAITING else running
        counts[request.tenant] = counts.get(request.tenant, 0) + 1
    shares = [
        TenantShare(name, running.get(name, 0), waiting.get(name, 0)) for name in running.keys() | waiting
    ]
    shares.sort(key=lambda share: (-share.num_running, -share.num_waiting, share.tenant))
    shown = [share for share in shares if not tenant or share.tenant == tenant][:MAX_TENANTS]
    num_others = len(shares) - len(shown)
    if num_others:
        num_running = sum(running.values()) - sum(share.num_running for share in shown)
        num_waiting = sum(waiting.values()) - sum(share.num_waiting for share in shown)
        shown.append(TenantShare("", num_running, num_waiting, num_others))
    return shown

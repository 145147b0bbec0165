"""Which waiting queue does each scheduling policy use?"""

from __future__ import annotations

from collections.abc import Mapping

from splitserve.engine_core.scheduler.waiting.fair_queue import FairQueue
from splitserve.engine_core.scheduler.waiting.queues import FcfsQueue, PriorityQueue, WaitingQueue


def make_queue(
    policy: str, max_num_seqs: int = 1, tenant_weights: Mapping[str, int] | None = None
) -> WaitingQueue:
    """Return the queue of a policy.

    Args:
        policy: of engine_core.settings.scheduling.POLICIES.
        max_num_seqs: rows of the running batch.
        tenant_weights: shares by tenant under the fair policy.
    """
    if policy == "fair":
        return FairQueue(max_num_seqs, tenant_weights or {})
    return {"fcfs": FcfsQueue, "priority": PriorityQueue}[policy]()

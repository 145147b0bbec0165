"""Do the waiting queue, the running rows, their blocks and the steps in flight agree?"""

from __future__ import annotations

from collections.abc import Collection

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.request import RequestState
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue


def check_integrity(
    waiting: WaitingQueue, running: RunningRows, kv: KVCacheManager, in_flight: Collection[PlannedStep]
) -> None:
    """Check that all bookkeeping of a scheduler is consistent.

    Raises:
        IntegrityError: names the first disagreement.
    """
    running.check_integrity()
    waiting.check_integrity(running)
    rows = running.order.tolist()
    kv.check_integrity({row: int(running.num_computed_tokens[row]) for row in rows})
    for request in waiting:
        if request.state is not RequestState.WAITING or request.row != -1:
            raise IntegrityError(
                f"request {request.arrival} waits in state {request.state}, row {request.row}"
            )
    kv.indexer.announced.check_integrity(
        {row: kv.indexer.next_hash(row, running.request_at(row)) for row in rows}
    )
    for row in rows:
        _check_counts_in_flight(row, running, in_flight)
        if kv.bounds.has_cache and running.num_computed_tokens[row] > kv.capacity[row]:
            raise IntegrityError(f"row {row} computed more tokens than its blocks hold")


def _check_counts_in_flight(row: int, running: RunningRows, in_flight: Collection[PlannedStep]) -> None:
    first_step = running.first_step[row]
    num_sampling = sum(
        int((step.sampling_rows == row).sum()) for step in in_flight if first_step <= step.step
    )
    if running.num_tokens[row] - running.num_known_tokens[row] != num_sampling:
        raise IntegrityError(
            f"row {row} knows {running.num_known_tokens[row]} of {running.num_tokens[row]} tokens"
            f" while {num_sampling} are in flight"
        )

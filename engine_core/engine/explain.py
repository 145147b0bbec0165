"""Why does a request wait? Looked up when somebody asks, so that scheduling costs nothing for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from splitserve.engine_core.engine.request_table import RequestTable
from splitserve.engine_core.ipc.messages import RequestInfo, RequestStage, WaitReason
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.scheduler import Scheduler

MAX_EXPLAINED = 100


def shortage(scheduler: Scheduler) -> WaitReason:
    """Tell what the head of the queue waits for, NONE when nothing waits."""
    scheduler.waiting.settle(scheduler.running)
    request = scheduler.waiting.head()
    if request is None:
        return WaitReason.NONE
    if not scheduler.running.num_free_rows:
        return WaitReason.ROWS
    if _follows(request):
        return WaitReason.PREFIX
    if request.sampling.grammar in scheduler.row_admission.uncompiled:
        return WaitReason.GRAMMAR
    if _awaits_adapter(request):
        return WaitReason.ADAPTER
    if scheduler.is_short_of_blocks:
        return WaitReason.BLOCKS
    return WaitReason.TOKENS


def waiting_by_reason(scheduler: Scheduler) -> dict[str, int]:
    """Count the waiting requests by wait reason; O(log n)."""
    reason = shortage(scheduler)
    num_held_back = scheduler.waiting.num_held_back()
    counts = {
        reason.name.lower(): len(scheduler.waiting) - num_held_back,
        WaitReason.FAIR_SHARE.name.lower(): num_held_back,
    }
    return {reason: count for reason, count in counts.items() if count}


def find_requests(open_requests: RequestTable, request_ids: Iterable[str], tenant: str) -> list[Request]:
    """Return the oldest requests in flight that a tenant asks for, at most MAX_EXPLAINED; O(n).

    Args:
        open_requests: all there are.
        request_ids: "ID" matches the request of that id and its sequences "ID-0" and so on; none matches all.
        tenant: whose requests to return; "" for everybody's.
    """
    wanted = tuple(request_ids)
    parts = tuple(f"{request_id}-" for request_id in wanted)
    found = (
        request
        for request in open_requests
        if (not tenant or request.tenant == tenant)
        and (not wanted or request.request_id in wanted or request.request_id.startswith(parts))
    )
    return heapq.nsmallest(MAX_EXPLAINED, found, key=lambda request: request.arrival)


def explain(
    scheduler: Scheduler, requests: list[Request], now_s: float, *, with_position: bool = True
) -> list[RequestInfo]:
    """Describe requests; positions cost O(n) per waiting request, where n requests wait."""
    head = shortage(scheduler)
    return [
        _explain_one(
            scheduler,
            request,
            head,
            now_s,
            scheduler.waiting.position(request)
            if with_position and request.state is RequestState.WAITING
            else -1,
        )
        for request in requests
    ]


def _explain_one(
    scheduler: Scheduler, request: Request, head: WaitReason, now_s: float, position: int
) -> RequestInfo:
    running, waiting = scheduler.running, scheduler.waiting
    row, is_waiting = request.row, request.state is RequestState.WAITING
    num_known = request.num_stored_tokens if is_waiting else int(running.num_known_tokens[row])
    if not is_waiting:
        stage, reason = RequestStage.RUNNING, WaitReason.NONE
    else:
        stage = RequestStage.PREEMPTED if request.was_started else RequestStage.WAITING
        reason = WaitReason.FAIR_SHARE if waiting.is_held_back(request) else head
        if _follows(request):
            reason = WaitReason.PREFIX
        elif request.sampling.grammar in scheduler.row_admission.uncompiled:
            reason = WaitReason.GRAMMAR
        elif _awaits_adapter(request):
            reason = WaitReason.ADAPTER
    return RequestInfo(
        request_id=request.request_id,
        stage=stage,
        waits_for=reason,
        position=position,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=num_known - request.num_prompt_tokens,
        num_computed_tokens=0 if is_waiting else int(running.num_computed_tokens[row]),
        num_preemptions=request.num_preemptions,
        priority=request.priority,
        age_s=now_s - request.arrival_s,
        queue_time_s=request.queue_time_s if request.was_started else now_s - request.arrival_s,
        num_draft_tokens=request.num_draft_tokens,
        num_accepted_draft_tokens=request.num_accepted_draft_tokens,
    )


def _awaits_adapter(request: Request) -> bool:
    return request.adapter is not None and not request.adapter.takes_rows


def _follows(request: Request) -> bool:
    return request.leader is not None and request.leader.state is RequestState.RUNNING

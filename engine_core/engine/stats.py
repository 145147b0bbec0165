"""How is the engine doing, in numbers? Counters since start and current gauges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from splitserve.engine_core.engine.explain import waiting_by_reason
from splitserve.engine_core.engine.lifecycle import RequestLifecycle
from splitserve.engine_core.engine.step_times import StepTimes
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.messages import EngineStats, QueueStats
from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.request import RequestState
from splitserve.engine_core.scheduler.counted_drafts import NO_DRAFTS, StepDrafts
from splitserve.engine_core.scheduler.scheduler import Scheduler
from splitserve.engine_core.settings.speculation import METHODS


class DraftTally:
    """What each drafter has drafted since start, by place behind a row's last token; one entry a method."""

    def __init__(self) -> None:
        self._drafted: dict[str, list[int]] = {}
        self._counted: dict[str, list[int]] = {}

    def add(self, step: Sequence[DraftCounts]) -> None:
        """Add what a step drafted."""
        for each in step:
            for sums, counts in ((self._drafted, each.drafted), (self._counted, each.counted)):
                known = sums.setdefault(each.method, [])
                known += [0] * (len(counts) - len(known))
                for place, count in enumerate(counts):
                    known[place] += count

    def counts(self) -> list[DraftCounts]:
        """Return the sums of those that have drafted."""
        return [DraftCounts(name, [*sums], [*self._counted[name]]) for name, sums in self._drafted.items()]


@dataclass(slots=True)
class StepCounters:
    """What was computed since start; counts are steps and tokens.

    Attributes:
        last_step_s: when the last step was applied, in seconds of the engine's clock; its start before any.
        worker_compute_s, worker_wait_s: seconds the worker computed, and waited for steps.
        num_worker_restarts: times the workers were lost.
        num_drafted_rows: rows of steps that tokens were drafted for.
        draft_tokens, accepted_draft_tokens: tokens drafted, and those of them that counted.
        drafts: the same by drafter and place.
    """

    last_step_s: float
    num_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    worker_compute_s: float = 0.0
    worker_wait_s: float = 0.0
    num_worker_restarts: int = 0
    num_drafted_rows: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    drafts: DraftTally = field(default_factory=DraftTally)

    def step(self, output: ModelRunnerOutput, drafts: StepDrafts, now_s: float) -> None:
        """Count a step that was applied, and what was drafted in it."""
        self.num_steps += 1
        self.worker_compute_s += output.compute_s
        self.worker_wait_s += output.wait_s
        self.last_step_s = now_s
        # Most steps have none.
        if drafts is NO_DRAFTS:
            return
        self.num_drafted_rows += len(drafts.by_request)
        for _, each in drafts.by_request:
            self.draft_tokens += each.num_drafts
            self.accepted_draft_tokens += each.num_counted
        self.drafts.add(drafts.by_drafter)


def check_drafters(output: ModelRunnerOutput) -> None:
    """Check who is said to have drafted.

    Raises:
        WorkerError: no drafter has that name.
    """
    for each in output.drafters:
        if each.method not in METHODS:
            raise WorkerError(f"output of step {output.step} has drafts by {each.method[:32]!r}")


def engine_stats(
    scheduler: Scheduler,
    requests: RequestLifecycle,
    counters: StepCounters,
    step_times: StepTimes,
    now_s: float,
) -> EngineStats:
    """Return the statistics of an engine; num_frontends counts those with requests in flight."""
    kv, admission = scheduler.kv, scheduler.row_admission
    offload = kv.cache.offload
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_blocks=kv.cache.pool.num_blocks,
        num_free_blocks=kv.cache.pool.num_free,
        num_cached_blocks=len(kv.cache.index),
        num_frontends=requests.table.num_frontends,
        num_steps=counters.num_steps,
        last_step_age_s=now_s - counters.last_step_s,
        num_preemptions=scheduler.num_preemptions,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        prefix_cache_queries=admission.num_queried_tokens,
        prefix_cache_hits=admission.num_hit_tokens,
        finished=dict(requests.finished),
        block_size=kv.block_size,
        worker_compute_s=counters.worker_compute_s,
        worker_wait_s=counters.worker_wait_s,
        num_host_blocks=offload.tier.num_slots if offload else 0,
        num_used_host_blocks=len(offload.tier) if offload else 0,
        num_saved_blocks=offload.num_saved if offload else 0,
        num_loaded_blocks=offload.num_loaded if offload else 0,
        median_step_s=step_times.median_s(),
        num_worker_restarts=counters.num_worker_restarts,
        num_drafted_rows=counters.num_drafted_rows,
        draft_tokens=counters.draft_tokens,
        accepted_draft_tokens=counters.accepted_draft_tokens,
        drafts=counters.drafts.counts(),
    )


def queue_stats(scheduler: Scheduler, requests: RequestLifecycle, max_loras: int, now_s: float) -> QueueStats:
    """Return the state of the waiting queue and what it has rejected; O(requests) if there are adapters."""
    by_state: dict[RequestState, set[str]] = {state: set() for state in RequestState}
    if max_loras:
        for request in requests.table:
            if request.adapter is not None:
                by_state[request.state].add(request.adapter.name)
    return QueueStats(
        num_waiting_tokens=requests.admission.num_waiting_tokens,
        queue_time_s=requests.admission.queue_time_s(now_s),
        waiting=waiting_by_reason(scheduler),
        rejected=dict(requests.admission.rejected),
        timeouts=dict(requests.timeouts),
        num_tenants=scheduler.waiting.num_tenants,
        max_loras=max_loras,
        running_adapters=sorted(by_state[RequestState.RUNNING]),
        waiting_adapters=sorted(by_state[RequestState.WAITING]),
    )

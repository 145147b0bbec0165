"""The engine without I/O: requests in, planned steps out, workers' outputs in, messages for frontends out.

The busy loop (engine_core.server.busy_loop) feeds it:

    add / abort / drop_frontend     as messages arrive
    expire                          once per turn
    plan -> submit                  while the executor takes steps
    apply                           when a step's output arrives
    take_outputs -> send            after either

plan() says how many steps may be in flight: as many as config.max_steps_in_flight, short ones as many as
scheduler.run_ahead. Nothing here blocks; one thread owns it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.deadlines import Deadlines
from splitserve.engine_core.engine.explain import explain, find_requests, waiting_by_reason
from splitserve.engine_core.engine.intake import Intake
from splitserve.engine_core.engine.request_table import RequestTable
from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    EngineStats,
    Finished,
    FinishReason,
    QueueStats,
    RequestInfo,
    Started,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.manager import make_kv_cache_manager
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import (
    EndedRequest,
    FrontendId,
    Request,
    RequestLimits,
    RequestState,
    RequestSummary,
)
from splitserve.engine_core.scheduler.apply import StepApplier, StepResult
from splitserve.engine_core.scheduler.output import OutputCollector
from splitserve.engine_core.scheduler.pacing.step_costs import StepCosts
from splitserve.engine_core.scheduler.pacing.step_pacer import StepPacer
from splitserve.engine_core.scheduler.scheduler import Scheduler
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.scheduler.waiting.admission import Admission

__all__ = ["EngineCore", "FrontendId"]


class EngineCore:
    """Every open request from arrival to end.

    Every accepted request ends exactly once: with one Finished, or silently after abort() or drop_frontend().
    """

    def __init__(
        self,
        config: SchedulerConfig,
        model: ModelInfo,
        epoch: int,
        clock: Clock,
        *,
        secret: bytes | None = None,
        kv_events: KVEventRecorder | None = None,
        on_end: Callable[[RequestSummary], None] | None = None,
        on_wait: Callable[[RequestInfo], None] | None = None,
    ) -> None:
        """Build an idle engine.

        Args:
            config: limits; max_model_len may exceed the model's, the smaller one holds.
            model: the served model.
            epoch: identifies this life of the engine in every output.
            clock: for queue times, timeouts and ages.
            secret: 32 bytes that seed the prefix-cache hashes; drawn anew for every engine when left out.
            kv_events: told which prefixes are cached and which are not any more.
            on_end: called with every request that ends, however it does.
            on_wait: called once with every request that has waited for config.log_wait_s.
        """
        self._config = config
        self._clock = clock
        self._stops = StopRules(model.vocab_size, model.eos_token_ids)
        self._costs = StepCosts(config.max_num_batched_tokens, model.sliding_window)
        kv_costs = KVCosts(self._costs.recompute_ns, config.move_block_ns, config.block_size)
        secret = os.urandom(32) if secret is None else secret
        kv = make_kv_cache_manager(config, secret, model.sliding_window, kv_costs, kv_events)
        self._scheduler = Scheduler(config, self._stops, kv, kv_costs)
        max_model_len = min(config.max_model_len, model.max_model_len)
        self.limits = RequestLimits(
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            max_cached_tokens=kv.bounds.max_cached_tokens or max_model_len,
        )
        self._applier = StepApplier(self._scheduler, self._stops)
        self._open = RequestTable()
        self._intake = Intake(
            self.limits,
            config.max_num_seqs + config.max_num_waiting,
            config.policy,
            self._open,
            kv.cache.index.namespace,
        )
        self._admission = Admission(config.max_num_waiting, config.max_waiting_tokens, config.tenant_weights)
        self._deadlines = Deadlines(config.queue_timeout_s, config.log_wait_s)
        self._timeouts: Counter[str] = Counter()
        paced = config.target_itl_s > 0
        self._cap_beside = StepPacer(config.target_itl_s, self._costs).cap if paced else None
        self._outputs = OutputCollector(epoch)
        self._on_end = on_end
        self._on_wait = on_wait
        self._num_steps = 0
        self._last_step_s = clock.monotonic()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._worker_compute_s = 0.0
        self._worker_wait_s = 0.0
        self._finished: Counter[str] = Counter()

    @property
    def max_num_tokens(self) -> int:
        """Longest sequence this engine takes: the smallest of configuration, model and KV pool, in tokens."""
        return self.limits.max_num_tokens

    @property
    def has_requests(self) -> bool:
        """Whether any request is open, running or waiting."""
        return len(self._open) > 0

    @property
    def num_steps_in_flight(self) -> int:
        """Planned steps whose output has not been applied."""
        return len(self._scheduler.in_flight)

    def add(self, frontend: FrontendId, message: AddRequest, *siblings: AddRequest) -> None:
        """Queue the sequences of one request, all or none; others may have to make room for it.

        Raises:
            InvalidRequestError: a field is out of range or a handle is in use.
            ContextLengthError: a prompt leaves no room in the model's context or the KV pool.
            OverloadedError: max_num_waiting requests or max_waiting_tokens tokens wait already, and who they
                are of holds no more than this one's side would; tells for how long.
            ProtocolError: a token column is malformed.
        """
        now_s = self._clock.monotonic()
        added = self._intake.siblings(frontend, (message, *siblings), now_s)
        scheduler = self._scheduler
        num_beside = len(scheduler.waiting) - self._admission.num_waiting
        # Those that free rows are there for start in the next step.
        num_free_rows = scheduler.running.num_free_rows - num_beside
        for displaced in self._admission.make_room(added, num_free_rows, now_s):
            for ended in displaced.ends():
                self._end(ended)
        requests = list(added.waiting.values())
        for request in requests:
            self._open.add(request)
            scheduler.add(request)
        self._admission.added(added, now_s)
        for request, asked in zip(requests, (message, *siblings), strict=True):
            self._deadlines.add(request, asked.queue_timeout_s)
            self._end_if_complete(request)

    def abort(self, frontend: FrontendId, handles: Iterable[int]) -> None:
        """End requests without a Finished; unknown handles are ignored, as they may just have ended."""
        for handle in handles:
            request = self._open.get(frontend, handle)
            if request is not None:
                self._close(request, FinishReason.ABORT)

    def drop_frontend(self, frontend: FrontendId) -> None:
        """End all requests of a frontend that is gone and forget what it was to hear."""
        for request in self._open.of_frontend(frontend):
            self._close(request, FinishReason.ABORT)
        self._outputs.drop(frontend)

    def abort_all(self, reason: str) -> None:
        """End every open request with a Finished that says ABORT and why."""
        for request in list(self._open):
            self._end(EndedRequest(request, FinishReason.ABORT, error_message=reason))

    def expire(self) -> None:
        """End requests whose time has passed, with "timeout" (504) or "queue_timeout" (503)."""
        now_s = self._clock.monotonic()
        # First, so that a wait is told even if this looks so late that it has ended by now.
        for request in self._deadlines.long_waits(now_s):
            if self._on_wait is not None:
                self._on_wait(explain(self._scheduler, [request], now_s, with_position=False)[0])
        for ended in self._deadlines.ended(now_s):
            self._timeouts[ended.error_code] += 1
            self._end(ended)

    def plan(self) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run or enough steps are in flight."""
        output = self._scheduler.schedule(self._cap_beside)
        if self._scheduler.row_admission.started:
            self._report_started()
        return output

    def apply(self, output: ModelRunnerOutput) -> None:
        """Take in the output of the oldest step in flight.

        Raises:
            WorkerError: the output does not answer that step.
        """
        result = self._applier.apply(output)
        flight = result.flight
        compute_s = output.compute_s - output.move_s
        if not result.ran_out_of_memory:
            self._costs.observe(flight.packed_num_tokens, flight.num_computed_tokens, compute_s)
            self._scheduler.run_ahead.observe(compute_s)
        self._num_steps += 1
        self._worker_compute_s += output.compute_s
        self._worker_wait_s += output.wait_s
        self._last_step_s = self._clock.monotonic()
        self._report(result)

    def take_outputs(self) -> dict[FrontendId, StepOutputs]:
        """Return what each frontend has to hear now; others are left out."""
        return self._outputs.take(self._clock.monotonic())

    @property
    def outputs_due_s(self) -> float:
        """Time by which take_outputs() has to be called though no step ends; inf if nothing is gathered."""
        return self._outputs.due_s

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; returns how many blocks held one."""
        return self._scheduler.reset_prefix_cache()

    def explain(self, request_ids: Iterable[str], tenant: str) -> list[RequestInfo]:
        """Tell where open requests stand and what they wait for; see engine_core.engine.explain."""
        requests = find_requests(self._open, request_ids, tenant)
        return explain(self._scheduler, requests, self._clock.monotonic())

    def queue_stats(self) -> QueueStats:
        """Return the state of the waiting queue and what it turned away."""
        return QueueStats(
            num_waiting_tokens=self._admission.num_waiting_tokens,
            queue_time_s=self._admission.queue_time_s(self._clock.monotonic()),
            waiting=waiting_by_reason(self._scheduler),
            rejected=dict(self._admission.rejected),
            timeouts=dict(self._timeouts),
            num_tenants=self._scheduler.waiting.num_tenants,
        )

    def stats(self) -> EngineStats:
        """Return counters since start and gauges of now; num_frontends counts those with open requests."""
        scheduler = self._scheduler
        offload = scheduler.kv.cache.offload
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks=self._config.num_blocks,
            num_free_blocks=scheduler.kv.cache.pool.num_free,
            num_cached_blocks=len(scheduler.kv.cache.index),
            num_frontends=self._open.num_frontends,
            num_steps=self._num_steps,
            last_step_age_s=self._clock.monotonic() - self._last_step_s,
            num_preemptions=scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=scheduler.row_admission.num_queried_tokens,
            prefix_cache_hits=scheduler.row_admission.num_hit_tokens,
            finished=dict(self._finished),
            block_size=self._config.block_size,
            worker_compute_s=self._worker_compute_s,
            worker_wait_s=self._worker_wait_s,
            num_host_blocks=self._config.num_host_blocks,
            num_used_host_blocks=len(offload.tier) if offload else 0,
            num_saved_blocks=offload.num_saved if offload else 0,
            num_loaded_blocks=offload.num_loaded if offload else 0,
        )

    def check_integrity(self) -> None:
        """Compare all bookkeeping with itself; takes time in proportion to blocks and requests.

        Raises:
            IntegrityError: names the first disagreement.
        """
        self._open.check_integrity()
        self._scheduler.check_integrity()
        num_queued = len(self._scheduler.waiting) + len(self._scheduler.running)
        if num_queued != len(self._open):
            raise IntegrityError(f"{len(self._open)} requests are open, {num_queued} wait or run")
        num_tokens = sum(r.num_stored_tokens for r in self._scheduler.waiting if not r.was_started)
        if num_tokens != self._admission.num_waiting_tokens:
            raise IntegrityError(f"{num_tokens} tokens wait, {self._admission.num_waiting_tokens} counted")
        self._admission.check_integrity()
        for request in self._open:
            if request.state is RequestState.ENDED:
                raise IntegrityError(f"request {request.arrival} has ended but is open")

    def _end_if_complete(self, request: Request) -> None:
        """End a resumed request whose tokens already reach its end: only the Finished was lost."""
        if request.num_stored_tokens == request.num_prompt_tokens:
            return
        stopped, stop_token_id = self._stops.ends_after(request)
        if stopped:
            self._end(EndedRequest(request, FinishReason.STOP, stop_token_id))
        elif request.repetition is not None and request.repetition.found:
            self._end(EndedRequest(request, FinishReason.REPETITION))
        elif request.num_stored_tokens >= request.max_num_tokens:
            self._end(EndedRequest(request, FinishReason.LENGTH))

    def _report_started(self) -> None:
        now_s = self._clock.monotonic()
        for request in self._scheduler.row_admission.started:
            self._prompt_tokens += request.num_prompt_tokens
            request.queue_time_s = now_s - request.arrival_s
            self._deadlines.started(request)
            self._admission.started(request, now_s)
            started = Started(request.handle, request.num_cached_tokens, request.queue_time_s)
            self._outputs.add_started(request.frontend, started)
        self._scheduler.row_admission.started.clear()

    def _report(self, result: StepResult) -> None:
        for tokens in result.tokens:
            self._generation_tokens += tokens.num_tokens
            self._outputs.add_tokens(self._open.frontend_at(tokens.frontend_idx), tokens)
        for frontend, logprobs in result.logprobs:
            self._outputs.add_logprobs(frontend, logprobs)
        for frontend, logprobs in result.prompt_logprobs:
            self._outputs.add_prompt_logprobs(frontend, logprobs)
        for ended in result.ended:
            self._end(ended)

    def _end(self, ended: EndedRequest) -> None:
        """Close a request and tell its frontend."""
        request = ended.request
        self._close(request, ended.reason)
        self._outputs.add_finished(
            request.frontend,
            Finished(
                handle=request.handle,
                reason=ended.reason,
                stop_token_id=ended.stop_token_id,
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
                error_code=ended.error_code,
                error_message=ended.error_message,
                error_status=ended.error_status,
                retry_after_s=ended.retry_after_s,
            ),
        )

    def _close(self, request: Request, reason: FinishReason) -> None:
        if self._on_end is not None:
            self._on_end(self._summary(request, reason))
        if not request.was_started:
            self._admission.given_up(request, self._clock.monotonic())
        self._scheduler.remove(request)
        self._open.remove(request)
        self._deadlines.remove(request)
        self._finished[reason.name.lower()] += 1

    def _summary(self, request: Request, reason: FinishReason) -> RequestSummary:
        known = self._scheduler.running.num_known_tokens
        without_row = max(request.num_released_tokens, request.num_stored_tokens)
        num_tokens = int(known[request.row]) if request.row >= 0 else without_row
        now_s = self._clock.monotonic()
        return RequestSummary(
            request_id=request.request_id,
            frontend=request.frontend,
            outcome=reason.name.lower(),
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=num_tokens - request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            queue_time_s=request.queue_time_s if request.was_started else now_s - request.arrival_s,
            total_time_s=now_s - request.arrival_s,
        )

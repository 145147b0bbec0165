"""How does a request live in the engine? It arrives, is checked, queued, and ends exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.adapters.owner import Adapters
from splitserve.engine_core.engine.deadlines import Deadlines
from splitserve.engine_core.engine.explain import explain
from splitserve.engine_core.engine.intake import Intake
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.engine.request_table import RequestTable
from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason, Started
from splitserve.engine_core.request import (
    EndedRequest,
    FrontendId,
    Request,
    RequestLimits,
    RequestState,
    RequestSummary,
)
from splitserve.engine_core.scheduler.output import OutputCollector
from splitserve.engine_core.scheduler.scheduler import Scheduler
from splitserve.engine_core.scheduler.waiting.queue_admission import QueueAdmission


class RequestLifecycle:
    """Every request in flight from arrival to end; part of the engine.

    Every accepted request ends exactly once: with one Finished, or silently after abort() or drop_frontend().

    Attributes:
        table: the requests in flight.
        admission: how much waits, and what was rejected.
        deadlines: when requests run out of time.
        timeouts: number of requests that did, by error code.
        finished: number of requests that ended, by reason.

    Args:
        config: limits of the queue and times.
        limits: of one request.
        clock: for queue times, timeouts and ages.
        scheduler: plans those in flight.
        outputs: collects what frontends are told of starts and ends.
        listeners: told of ended requests and long waits.
        adapters: that requests may name.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        limits: RequestLimits,
        clock: Clock,
        scheduler: Scheduler,
        outputs: OutputCollector,
        listeners: Listeners,
        adapters: Adapters,
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._outputs = outputs
        self._listeners = listeners
        self.table = RequestTable()
        self.admission = QueueAdmission(
            config.max_num_waiting, config.max_waiting_tokens, config.tenant_weights
        )
        self.deadlines = Deadlines(config.queue_timeout_s, config.log_wait_s)
        self.timeouts: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        max_num_siblings = config.max_num_seqs + config.max_num_waiting
        namespace = scheduler.kv.cache.index.namespace
        self._intake = Intake(limits, max_num_siblings, config.policy, self.table, namespace, adapters.find)

    def add(self, frontend: FrontendId, messages: tuple[AddRequest, ...]) -> list[Request]:
        """Queue the sequences of one request and return them; see EngineCore.add()."""
        now_s = self._clock.monotonic()
        added = self._intake.siblings(frontend, messages, now_s)
        scheduler = self._scheduler
        num_beside = len(scheduler.waiting) - self.admission.num_waiting
        # Requests for which there are free rows start in the next step.
        num_free_rows = scheduler.running.num_free_rows - num_beside
        for displaced in self.admission.make_room(added, num_free_rows, now_s):
            for ended in displaced.ends():
                self.end(ended)
        requests = list(added.waiting.values())
        for request in requests:
            self.table.add(request)
            scheduler.add(request)
        self.admission.added(added, now_s)
        for request, asked in zip(requests, messages, strict=True):
            self.deadlines.add(request, asked.queue_timeout_s)
            self._end_if_complete(request)
        return requests

    def abort(self, frontend: FrontendId, handles: Iterable[int]) -> None:
        """End requests without a Finished; unknown handles are ignored, as they may just have ended."""
        for handle in handles:
            request = self.table.get(frontend, handle)
            if request is not None:
                self._close(request, FinishReason.ABORT)

    def abort_all(self) -> None:
        """End every request without a Finished."""
        for request in list(self.table):
            self._close(request, FinishReason.ABORT)

    def drop_frontend(self, frontend: FrontendId) -> None:
        """End all requests of a frontend that is gone and drop its pending output."""
        for request in self.table.of_frontend(frontend):
            self._close(request, FinishReason.ABORT)
        self._outputs.drop(frontend)

    def expire(self) -> None:
        """End requests whose time has passed, with "timeout" (504) or "queue_timeout" (503)."""
        now_s = self._clock.monotonic()
        # First, so that a long wait is logged even if this call comes so late that it has timed out by now.
        for request in self.deadlines.long_waits(now_s):
            if self._listeners.on_wait is not None:
                self._listeners.on_wait(explain(self._scheduler, [request], now_s, with_position=False)[0])
        for ended in self.deadlines.ended(now_s):
            self.timeouts[ended.error_code] += 1
            self.end(ended)

    def started(self, requests: Iterable[Request]) -> None:
        """Tell the frontends of requests that left the queue for the first time."""
        now_s = self._clock.monotonic()
        for request in requests:
            request.queue_time_s = now_s - request.arrival_s
            self.deadlines.started(request)
            self.admission.started(request, now_s)
            started = Started(request.handle, request.num_cached_tokens, request.queue_time_s)
            self._outputs.add_started(request.frontend, started)

    def end(self, ended: EndedRequest) -> None:
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

    def check_integrity(self) -> None:
        """Raise IntegrityError unless table, queue, rows and their counters agree."""
        self.table.check_integrity()
        waiting, running = self._scheduler.waiting, self._scheduler.running
        num_queued = len(waiting) + len(running)
        if num_queued != len(self.table):
            raise IntegrityError(f"{len(self.table)} requests are in flight, {num_queued} wait or run")
        num_tokens = sum(r.num_stored_tokens for r in waiting if not r.was_started)
        if num_tokens != self.admission.num_waiting_tokens:
            raise IntegrityError(f"{num_tokens} tokens wait, {self.admission.num_waiting_tokens} counted")
        self.admission.check_integrity()
        for request in self.table:
            if request.state is RequestState.ENDED:
                raise IntegrityError(f"request {request.arrival} has ended but is in flight")

    def _end_if_complete(self, request: Request) -> None:
        """End a resumed request whose tokens are already complete: only its Finished was lost."""
        if request.num_stored_tokens == request.num_prompt_tokens:
            return
        stopped, stop_token_id = self._scheduler.stops.ends_after(request)
        if stopped:
            self.end(EndedRequest(request, FinishReason.STOP, stop_token_id))
        elif request.repetition is not None and request.repetition.found:
            self.end(EndedRequest(request, FinishReason.REPETITION))
        elif request.num_stored_tokens >= request.max_num_tokens:
            self.end(EndedRequest(request, FinishReason.LENGTH))

    def _close(self, request: Request, reason: FinishReason) -> None:
        now_s = self._clock.monotonic()
        if self._listeners.on_end is not None:
            self._listeners.on_end(self._summary(request, reason, now_s))
        if not request.was_started:
            self.admission.given_up(request, now_s)
        self._scheduler.remove(request)
        self.table.remove(request)
        self.deadlines.remove(request)
        self.finished[reason.name.lower()] += 1

    def _summary(self, request: Request, reason: FinishReason, now_s: float) -> RequestSummary:
        known = self._scheduler.running.num_known_tokens
        without_row = max(request.num_released_tokens, request.num_stored_tokens)
        num_tokens = int(known[request.row]) if request.row >= 0 else without_row
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

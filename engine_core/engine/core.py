"""The engine without I/O: requests in, planned steps out, workers' outputs in, messages for frontends out.

The busy loop (engine_core.server.busy_loop) feeds it:

    add / abort / drop_frontend     as messages arrive
    expire                          once per round
    grammars.take_unsent -> compile
    take_adapters -> load_adapter
    compiled, adapter_loaded        as the worker answers
    plan -> submit                  while the executor takes steps
    apply                           when a step's output arrives
    start_over                      when the workers are lost
    take_outputs -> send            after either

plan() says how many steps may be in flight: as many as config.max_steps_in_flight, short ones as many as
scheduler.run_ahead. Nothing here blocks; one thread owns it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.adapters.owner import AdapterPlan, Adapters
from splitserve.engine_core.engine.explain import explain, find_requests
from splitserve.engine_core.engine.grammars import Grammars
from splitserve.engine_core.engine.lifecycle import RequestLifecycle
from splitserve.engine_core.engine.listeners import NO_LISTENERS, Listeners
from splitserve.engine_core.engine.quarantine import Quarantine
from splitserve.engine_core.engine.recent_steps import RecentSteps
from splitserve.engine_core.engine.stats import StepCounters, check_drafters, engine_stats, queue_stats
from splitserve.engine_core.engine.step_times import StepTimes
from splitserve.engine_core.engine.view import view_engine
from splitserve.engine_core.errors import UnsafeRequestError
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    EngineStats,
    FinishReason,
    QueueStats,
    RequestInfo,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import EngineView, ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    GrammarCompiled,
    LoadAdapter,
    ModelRunnerOutput,
    SchedulerOutput,
)
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kv_cache.assembly import make_kv_cache_manager
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.window import LayerWindows
from splitserve.engine_core.request import EndedRequest, FrontendId, Request, RequestLimits
from splitserve.engine_core.scheduler.apply import AppliedStep, StepApplier
from splitserve.engine_core.scheduler.in_flight import requests_in_flight
from splitserve.engine_core.scheduler.output import NEVER, OutputCollector
from splitserve.engine_core.scheduler.pacing.step_costs import StepCosts
from splitserve.engine_core.scheduler.pacing.step_pacer import StepPacer
from splitserve.engine_core.scheduler.scheduler import Scheduler
from splitserve.engine_core.scheduler.stopping import StopRules

# Most vectors of tokens that a step may make: they go to a frontend in one message (ipc.transport).
_MAX_STEP_VECTOR_BYTES = 48 * 2**20

__all__ = ["EngineCore", "FrontendId"]


class EngineCore:
    """Requests and steps: every request has a life of its own, every step serves many of them.

    Attributes:
        scheduler: plans the steps; belongs to this engine.
        step_times: how long they take.
        grammars: of the requests, which wait until the worker has compiled them.
        adapters: that requests may name, and those that the workers have.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        model: ModelInfo,
        epoch: int,
        clock: Clock,
        *,
        secret: bytes | None = None,
        listeners: Listeners = NO_LISTENERS,
        ledger: Ledger | None = None,
    ) -> None:
        """Build an idle engine.

        Args:
            config: limits; max_model_len may exceed the model's; the smaller one applies.
            model: the served model.
            epoch: identifies this life of the engine in every output.
            clock: for queue times, timeouts and ages.
            secret: 32 bytes that seed the prefix-cache hashes; random if left out.
            listeners: told of cached prefixes, ended requests and long waits.
            ledger: of the workers' KV cache; the secret is then the one that it names, if it does.
        """
        self._clock = clock
        self._costs = StepCosts(config.max_num_batched_tokens, model.sliding_window)
        windows = LayerWindows.of(model)
        kv_costs = KVCosts(self._costs.recompute_ns, config.move_block_ns, config.block_size, windows)
        secret = os.urandom(32) if secret is None else secret
        kv = make_kv_cache_manager(config, secret, windows, kv_costs, listeners.kv_events, ledger)
        self.scheduler = Scheduler(config, StopRules(model.vocab_size, model.eos_token_ids), kv, kv_costs)
        self._started = self.scheduler.row_admission.started
        self._applier = StepApplier(self.scheduler)
        paced = config.target_itl_s > 0
        self._cap_beside = StepPacer(config.target_itl_s, self._costs).cap if paced else None
        self.limits = _limits(config, model, kv.bounds.max_cached_tokens)
        self._outputs = OutputCollector(epoch)
        plan = AdapterPlan(config.num_adapter_slots, config.adapters)
        self.adapters = Adapters(plan, lambda: os.urandom(16).hex())
        self.scheduler.row_admission.wanted_adapters = self.adapters.wanted
        self._requests = RequestLifecycle(
            config, self.limits, clock, self.scheduler, self._outputs, listeners, self.adapters
        )
        self._table = self._requests.table
        self._counters = StepCounters(last_step_s=clock.monotonic())
        self._in_flight = self.scheduler.in_flight
        self.step_times = StepTimes(self._in_flight, self._costs, config, clock.monotonic())
        self._recent_steps = RecentSteps()
        self._quarantine = Quarantine(self.scheduler.running.known_tokens_of)
        self.scheduler.row_admission.suspects = self._quarantine.held
        self.grammars = Grammars()
        self.scheduler.row_admission.uncompiled = self.grammars.uncompiled

    @property
    def max_num_tokens(self) -> int:
        """Longest sequence this engine accepts: the least of configuration, model and KV pool, in tokens."""
        return self.limits.max_num_tokens

    @property
    def has_requests(self) -> bool:
        """Whether any request is in flight, running or waiting."""
        return len(self._table) > 0

    @property
    def num_requests(self) -> int:
        """Requests in flight, running or waiting."""
        return len(self._table)

    @property
    def num_steps_in_flight(self) -> int:
        """Planned steps whose output has not been applied."""
        return len(self._in_flight)

    def add(self, frontend: FrontendId, message: AddRequest, *siblings: AddRequest) -> None:
        """Queue the sequences of one request, all or none; other waiting requests may be displaced.

        Raises:
            InvalidRequestError: a field is out of range or a handle is in use.
            ContextLengthError: a prompt leaves no room in the model's context or the KV pool.
            OverloadedError: max_num_waiting requests or max_waiting_tokens tokens wait already, and nobody
                holds more of the queue than this request's tenant or frontend would with it.
            ProtocolError: a token column is malformed.
        """
        requests = self._requests.add(frontend, (message, *siblings))
        self.grammars.add(requests)
        self.adapters.want(requests)

    def abort(self, frontend: FrontendId, handles: Iterable[int]) -> None:
        """End requests without a Finished; unknown handles are ignored, as they may just have ended."""
        self._requests.abort(frontend, handles)

    def drop_frontend(self, frontend: FrontendId) -> None:
        """End all requests of a frontend that is gone and drop its pending output."""
        self._requests.drop_frontend(frontend)

    def abort_all(self) -> None:
        """End every request in flight without a Finished: their frontends were told to go elsewhere."""
        self._requests.abort_all()

    def start_over(self) -> None:
        """The workers are lost: release_workers(), but what workers die of ends with "request_unsafe"."""
        unsafe = self._quarantine.worker_lost(requests_in_flight(self._in_flight, self.scheduler.running))
        self._counters.num_worker_restarts += 1
        self.release_workers()
        for request in [each for each in self._table if each.siblings in unsafe]:
            self._requests.end(_unsafe(request))

    def release_workers(self) -> None:
        """The workers are gone, with KV and steps: requests go on from their tokens, before new ones."""
        self.scheduler.start_over()
        for ended in self.grammars.start_over(self._table):
            self._requests.end(ended)
        self.adapters.start_over(self._table)

    def compiled(self, answer: GrammarCompiled) -> None:
        """Let the requests of a grammar be admitted, or end them if it was refused.

        Raises:
            WorkerError: it was not asked for.
        """
        for ended in self.grammars.answered(answer):
            self._requests.end(ended)

    def take_adapters(self) -> list[LoadAdapter]:
        """Return which adapters the workers are to load into which slots; the rows there have ended."""
        return self.adapters.take_unsent(self._running) if self.adapters.wanted else []

    def _running(self) -> list[Request]:
        running = self.scheduler.running
        return running.requests_at(running.order)

    def adapter_loaded(self, answer: AdapterLoaded) -> None:
        """Let the requests of an adapter be admitted, or end them if it cannot be loaded.

        Raises:
            WorkerError: it was not asked for.
        """
        for ended in self.adapters.answered(answer, self._table):
            self._requests.end(ended)

    def expire(self) -> None:
        """End requests whose time has passed, with "timeout" (504) or "queue_timeout" (503)."""
        self._requests.expire()

    def plan(self) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run or enough steps are in flight."""
        is_first = not self._in_flight
        if is_first and self._quarantine:
            # Those on trial may have ended without a step.
            self._quarantine.look()
        output = self.scheduler.schedule(self._cap_beside)
        if is_first and output is not None:
            self.step_times.begin(self._clock.monotonic())
        if self._started:
            self._counters.prompt_tokens += sum(request.num_prompt_tokens for request in self._started)
            self._requests.started(self._started)
            self._started.clear()
        return output

    def apply(self, output: ModelRunnerOutput) -> None:
        """Take in the output of the oldest step in flight.

        Raises:
            WorkerError: the output does not answer that step.
        """
        if output.drafters:
            check_drafters(output)
        result = self._applier.apply(output)
        step = result.step
        compute_s = output.compute_s - output.move_s
        if not result.ran_out_of_memory:
            self._costs.observe(step.packed_num_tokens, step.num_computed_tokens, compute_s)
            self.scheduler.run_ahead.observe(compute_s)
        now_s = self._clock.monotonic()
        self._counters.step(output, result.drafts, now_s)
        seconds = now_s - self.step_times.begin_s
        self.step_times.end(now_s)
        preemptions = self.scheduler.num_preemptions
        self._recent_steps.add(step.step, now_s, seconds, step.packed_num_tokens, preemptions)
        self._report(result)
        if self._quarantine:
            self._quarantine.look()

    def take_outputs(self, *, everything: bool = False) -> dict[FrontendId, StepOutputs]:
        """Return the output due now by frontend; frontends without any are left out.

        Args:
            everything: also what is gathered to be sent later.
        """
        return self._outputs.take(NEVER if everything else self._clock.monotonic())

    @property
    def outputs_due_s(self) -> float:
        """Time by which take_outputs() must be called even if no step ends; inf if no tokens are batched."""
        return self._outputs.due_s

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; returns how many blocks held one."""
        return self.scheduler.reset_prefix_cache()

    def explain(self, request_ids: Iterable[str], tenant: str) -> list[RequestInfo]:
        """Tell where requests in flight stand and what they wait for; see engine_core.engine.explain."""
        requests = find_requests(self._table, request_ids, tenant)
        return explain(self.scheduler, requests, self._clock.monotonic())

    def view(self, tenant: str) -> EngineView:
        """Describe blocks, last steps and tenants; see engine_core.engine.view."""
        return view_engine(self.scheduler, self._recent_steps, self._table, tenant, self._clock.monotonic())

    def queue_stats(self) -> QueueStats:
        """Return the state of the waiting queue and what it has rejected."""
        return queue_stats(self.scheduler, self._requests, self.adapters.num_slots, self._clock.monotonic())

    def stats(self) -> EngineStats:
        """Return counters since start and gauges of now; see engine_core.engine.stats."""
        now_s = self._clock.monotonic()
        return engine_stats(self.scheduler, self._requests, self._counters, self.step_times, now_s)

    def check_integrity(self) -> None:
        """Check that all bookkeeping is consistent; takes time in proportion to blocks and requests.

        Raises:
            IntegrityError: names the first disagreement.
        """
        self.scheduler.check_integrity()
        self._requests.check_integrity()

    def _report(self, result: AppliedStep) -> None:
        """Collect what frontends are told about a step."""
        for tokens in result.tokens:
            self._counters.generation_tokens += tokens.num_tokens
            self._outputs.add_tokens(self._table.frontend_at(tokens.frontend_idx), tokens)
        for frontend, logprobs in result.logprobs:
            self._outputs.add_logprobs(frontend, logprobs)
        for frontend, logprobs in result.prompt_logprobs:
            self._outputs.add_prompt_logprobs(frontend, logprobs)
        for frontend, pooled in result.pooled:
            self._outputs.add_pooled(frontend, pooled)
        if result.drafts.by_request:
            self._outputs.add_drafted(result.drafts.by_request)
        for ended in result.ended:
            self._requests.end(ended)


def _unsafe(request: Request) -> EndedRequest:
    code, status = UnsafeRequestError.code, UnsafeRequestError.status
    message = "workers were lost twice while they computed this request, so it is not tried again"
    return EndedRequest(request, FinishReason.ERROR, None, code, message, status)


def _limits(config: SchedulerConfig, model: ModelInfo, max_cached_tokens: int) -> RequestLimits:
    max_model_len = min(config.max_model_len, model.max_model_len)
    return RequestLimits(
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        max_cached_tokens=max_cached_tokens or max_model_len,
        pools=model.pooled_size > 0,
        pools_all=model.pools_all,
        pools_tokens=model.has_token_vectors
        and 4 * model.embedding_size * config.max_num_batched_tokens <= _MAX_STEP_VECTOR_BYTES,
        drafts=config.num_speculative_tokens > 0,
    )

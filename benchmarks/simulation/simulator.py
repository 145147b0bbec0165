"""The event loop: arrivals and ends of steps in the order of time, the real engine between them."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from typing import NamedTuple

from benchmarks.simulation.arrivals import make_arrivals
from benchmarks.simulation.measurements import Measurements
from benchmarks.simulation.rows import WorkerRows
from benchmarks.simulation.settings import Settings
from benchmarks.simulation.trace import PromptMaker, Trace
from benchmarks.simulation.watch import FairShares, Series
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import InvalidRequestError, OverloadedError
from splitserve.engine_core.ipc.messages import AddRequest, EngineStats, StepOutputs
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

FRONTEND = b"simulated"
# The simulated worker samples token 0 only, so nothing ends before its length.
NO_EOS: list[int] = []
# Clients of a closed loop wait before they go on after a rejection, or they would all be rejected at once.
REJECTED_PAUSE_S = 1.0


class EventClock:
    """Stands still until the next event."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        """Return the time of the event that is being handled."""
        return self._now_s

    def go_to(self, time_s: float) -> None:
        """Go on to the next event."""
        assert time_s >= self._now_s, "the clock never goes back"
        self._now_s = time_s


class TimedStep(NamedTuple):
    """A step that the simulated worker runs or will run next."""

    end_s: float
    output: ModelRunnerOutput


class Outcome(NamedTuple):
    """What a run has measured.

    Attributes:
        busy_s: simulated seconds in which the worker ran a step.
        digest: SHA-256 over all events with their times; equal for equal settings.
    """

    settings: Settings
    trace: Trace
    measurements: Measurements
    series: Series
    shares: FairShares
    rows: WorkerRows
    stats: EngineStats
    end_s: float
    busy_s: float
    digest: str


class Simulator:
    """One run over one trace; run() may be called once."""

    def __init__(self, settings: Settings, trace: Trace, *, check_integrity: bool = False) -> None:
        """Build an idle engine.

        Args:
            settings: of the run; the workload's shape is in the trace already.
            trace: what arrives.
            check_integrity: compare all bookkeeping after every event, which is slow.
        """
        self._settings = settings
        self._trace = trace
        self._check = check_integrity
        self._clock = EventClock()
        self._prompts = PromptMaker(trace, settings.workload.seed)
        model = ModelInfo(
            path="",
            architecture="simulated",
            dtype="float32",
            vocab_size=self._prompts.vocab_size,
            max_model_len=settings.engine.max_model_len,
            eos_token_ids=NO_EOS,
        )
        self._engine = EngineCore(settings.engine, model, 1, self._clock, secret=bytes(32))
        self._arrivals = make_arrivals(settings.workload, trace)
        self._rows = WorkerRows(settings.engine.max_num_seqs, trace.num_requests, settings.cost)
        self._measurements = Measurements(trace.num_requests, settings.goals)
        self._series = Series(settings.goals.sample_s)
        self._shares = FairShares(trace)
        self._in_flight: deque[TimedStep] = deque()
        self._worker_free_s = 0.0
        self._busy_s = 0.0
        self._digest = hashlib.sha256()
        # Requests of one length share their parameters, as building them is a fifth of an arrival's cost.
        self._sampling: dict[int, SequenceSampling] = {}

    def run(self) -> Outcome:
        """Play all events until every request has ended."""
        while True:
            self._turn()
            next_s = self._next_event_s()
            if next_s == math.inf:
                return self._outcome()
            self._clock.go_to(next_s)
            if self._in_flight and self._in_flight[0].end_s <= next_s:
                self._engine.apply(self._in_flight.popleft().output)
                self._after_event()

    def _turn(self) -> None:
        """What the busy loop does whenever it wakes up: take requests in, end late ones, plan."""
        now_s = self._clock.monotonic()
        while self._arrivals.next_s() <= now_s:
            self._arrive(self._arrivals.take(), now_s)
        self._engine.expire()
        self._after_event()
        while len(self._in_flight) < self._settings.goals.depth and self._plan(now_s):
            pass
        if self._series.is_due(now_s):
            self._series.take(now_s, self._engine.stats())
            self._shares.close_interval()

    def _next_event_s(self) -> float:
        end_s = self._in_flight[0].end_s if self._in_flight else math.inf
        if end_s == math.inf and self._engine.has_requests:
            raise AssertionError("requests are open, and nothing can run")
        return min(end_s, self._arrivals.next_s())

    def _arrive(self, request: int, now_s: float) -> None:
        self._log("arrive", now_s, request.to_bytes(8, "little"))
        self._measurements.sent(request, now_s)
        try:
            self._engine.add(FRONTEND, self._message(request))
        except (OverloadedError, InvalidRequestError):
            self._measurements.rejected(request, now_s)
            self._arrivals.ended(1, now_s + REJECTED_PAUSE_S)
        else:
            self._shares.waits(request)
        self._after_event()

    def _message(self, request: int) -> AddRequest:
        num_output = int(self._trace.output_tokens[request])
        sampling = self._sampling.get(num_output)
        if sampling is None:
            sampling = SequenceSampling(seed=0, max_tokens=num_output, ignore_eos=True)
            self._sampling[num_output] = sampling
        return AddRequest(
            handle=request,
            request_id="",
            prompt_token_ids=self._prompts.prompt(request),
            sampling=sampling,
            priority=int(self._trace.priority[request]),
            tenant=f"tenant-{self._trace.tenant[request]}",
            timeout_s=self._settings.workload.timeout_s,
        )

    def _plan(self, now_s: float) -> bool:
        """Plan a step and hand it to the worker, which starts it when it is done with the one before."""
        step = self._engine.plan()
        self._after_event()
        if step is None:
            return False
        output = self._rows.run(step)
        self._worker_free_s = max(self._worker_free_s, now_s) + output.compute_s
        self._busy_s += output.compute_s
        self._in_flight.append(TimedStep(self._worker_free_s, output))
        self._log("step", self._worker_free_s, step.rows + step.num_tokens)
        return True

    def _after_event(self) -> None:
        """Deliver what the engine has to say."""
        if self._check:
            self._engine.check_integrity()
        outputs = self._engine.take_outputs().get(FRONTEND)
        if outputs is not None:
            self._deliver(outputs, self._clock.monotonic())

    def _deliver(self, outputs: StepOutputs, now_s: float) -> None:
        for started in outputs.started:
            self._shares.starts(started)
        requests = self._measurements.hear(outputs, now_s)
        if len(requests):
            self._shares.tokens(requests)
        for finished in outputs.finished:
            self._log("end", now_s, finished.handle.to_bytes(8, "little"))
            if math.isnan(self._measurements.started_s[finished.handle]):
                self._shares.gave_up(finished.handle)
        if outputs.finished:
            self._arrivals.ended(len(outputs.finished), now_s)

    def _log(self, kind: str, time_s: float, content: bytes) -> None:
        self._digest.update(b"%s %s %d " % (kind.encode(), time_s.hex().encode(), len(content)))
        self._digest.update(content)

    def _outcome(self) -> Outcome:
        self._shares.close_interval()
        return Outcome(
            settings=self._settings,
            trace=self._trace,
            measurements=self._measurements,
            series=self._series,
            shares=self._shares,
            rows=self._rows,
            stats=self._engine.stats(),
            end_s=self._clock.monotonic(),
            busy_s=self._busy_s,
            digest=self._digest.hexdigest(),
        )

"""What the engine pool reports about its engines to the rest of the frontend."""

from __future__ import annotations

from dataclasses import dataclass, field

from splitserve.engine_core.ipc.messages import EngineStats, QueueStats, RequestInfo
from splitserve.engine_core.ipc.wire import ASLEEP
from splitserve.frontend.engines.failover.stats import FailoverStats
from splitserve.frontend.engines.served_model import ServedModel

# States in which a stage and its fraction say how far an engine's workers are.
STARTING = ("loading", "recovering")


@dataclass(slots=True, frozen=True)
class EngineStatus:
    """What this frontend knows of one engine.

    Attributes:
        state: "connecting", "loading", "ready", "draining", "recovering", "asleep", "lost" or "refused".
        stage, fraction: progress while loading or recovering, fraction 0..1.
        message: why it was refused or lost, "" otherwise.
        last_pong_age_s: seconds since the busy loop last answered; None before its first answer.
        num_open: this frontend's open requests on it.
        stalled: why no step of it can end, as its last Pong said; "" if all is well.
        stats, queue: from its last Pong; None before the first.
    """

    address: str
    state: str
    engine_id: str = ""
    stage: str = ""
    fraction: float = 0.0
    message: str = ""
    last_pong_age_s: float | None = None
    num_open: int = 0
    epoch: int = 0
    model: ServedModel | None = None
    stats: EngineStats | None = None
    queue: QueueStats | None = None
    stalled: str = ""

    @property
    def is_asleep(self) -> bool:
        """Whether it has no workers until it is woken up."""
        return self.state == ASLEEP


@dataclass(slots=True, frozen=True)
class Explanation:
    """The state of one engine's open requests; empty if the engine did not reply."""

    address: str
    ok: bool
    requests: list[RequestInfo] = field(default_factory=list)


@dataclass(slots=True)
class PoolStats:
    """Counters of this process since start, for /metrics; per-engine figures are in its EngineStatus.

    A request with n > 1 counts once in the requests_ fields and n times in num_open, which includes the
    num_displaced that wait for an engine.
    """

    num_open: int = 0
    requests_started: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    engines_lost: int = 0
    stale_outputs: int = 0
    protocol_errors: int = 0
    num_displaced: int = 0
    failover: FailoverStats = field(default_factory=FailoverStats)

    def count_end(self, *, finished: bool, failed: bool) -> None:
        """Count a request that ended: in an error, normally, or because its owner left."""
        if failed:
            self.requests_failed += 1
        elif finished:
            self.requests_finished += 1
        else:
            self.requests_aborted += 1

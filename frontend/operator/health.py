"""/live, /health and /ready: is the process alive, and do the engines' busy loops respond?"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from starlette.responses import Response

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.engines.status import STARTING, EngineStatus
from splitserve.frontend.metrics.engines import engine_names


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as this frontend sees it.

    Attributes:
        state: connecting, loading, ready, draining, recovering, asleep, lost or refused.
        answered: whether it replied to this probe in time.
        stalled: why no step can end although it replied, such as a stopped worker; null if all is well.
        last_step_age_s: time since its last step ended; keeps growing while the engine is idle.
        last_answer_age_s: time since its busy loop last replied.
    """

    engine: str
    state: str
    answered: bool
    stalled: str | None = None
    models: list[str]
    loading_stage: str | None = None
    loading_fraction: float | None = None
    last_step_age_s: float | None = None
    last_answer_age_s: float | None = None
    num_running: int | None = None
    num_waiting: int | None = None


class Health(msgspec.Struct, frozen=True):
    """The response of /health and /ready.

    Attributes:
        status: "ok", "asleep", "loading", "recovering", "draining" or "unavailable".
    """

    status: str
    engines: list[EngineHealth]


class HealthProbe:
    """Answers health probes; they fail once shutting_down is set."""

    def __init__(self, pool: EnginePool, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._shared: asyncio.Task[Response] | None = None
        self.shutting_down = False

    async def check(self) -> Response:
        """Answer one probe; probes that overlap share one round trip, so they cannot flood the engines."""
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(self._check(), name="health-probe")
        return await asyncio.shield(self._shared)

    async def _check(self) -> Response:
        answered: set[str] = set()
        with contextlib.suppress(EngineUnavailableError):
            answered = {status.address for status in await self._pool.ping(self._timeout_s)}
        statuses = self._pool.status()
        serving = any(
            status.state == "ready" and status.address in answered and not status.stalled
            for status in statuses
        )
        health = Health(self._verdict(serving, statuses), _engines(statuses, answered))
        status_code = 200 if health.status == "ok" else 503
        return Response(msgspec.json.encode(health), status_code, media_type="application/json")

    def _verdict(self, serving: bool, statuses: list[EngineStatus]) -> str:
        if self.shutting_down:
            return "draining"
        if serving:
            return "ok"
        states = {status.state for status in statuses}
        for state in ("asleep", "loading", "recovering", "draining"):
            if state in states:
                return state
        return "unavailable"


def _engines(statuses: list[EngineStatus], answered: set[str]) -> list[EngineHealth]:
    return [
        EngineHealth(
            engine=name,
            state=status.state,
            answered=status.address in answered,
            stalled=status.stalled or None,
            models=list(status.model.names) if status.model else [],
            loading_stage=status.stage if status.state in STARTING else None,
            loading_fraction=status.fraction if status.state in STARTING else None,
            last_step_age_s=status.stats.last_step_age_s if status.stats else None,
            last_answer_age_s=status.last_pong_age_s,
            num_running=status.stats.num_running if status.stats else None,
            num_waiting=status.stats.num_waiting if status.stats else None,
        )
        for name, status in zip(engine_names(statuses), statuses, strict=True)
    ]

"""GET /metrics: the metrics of the engines and of all frontends of the launch, collected at each scrape."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.launch import Launch
from splitserve.frontend.metrics.exposition import Labelled, merge
from splitserve.frontend.metrics.process import PREFIX
from splitserve.frontend.metrics.siblings import SiblingFrontends

# An engine in a long step replies only after it; its last known values are used then. Another frontend of the
# launch that is busy for longer than this is left out.
DEADLINE_S = 0.5


class Scrape:
    """Serves scrapes; overlapping ones share one round trip, so they cannot flood the engines."""

    def __init__(
        self, pool: EnginePool, engines: Collector, frontend: Collector, launch: Launch | None
    ) -> None:
        """Create the endpoint.

        Args:
            pool: the engines, pinged before each response.
            engines: families of the engines, the same at every frontend.
            frontend: families of this frontend, except those of the process and its garbage collector.
            launch: the launch whose other frontends are asked too; None for a standalone frontend.
        """
        self._pool = pool
        self._launch = launch
        self._siblings = SiblingFrontends(launch) if launch is not None else None
        self._shared: asyncio.Task[bytes] | None = None
        self._engines = engines
        # Separate registries: the library's global one would tie two apps of one process together.
        process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=process)
        GCCollector(registry=process)
        self._own = CollectorRegistry(auto_describe=False)
        self._own.register(frontend)
        self._own.register(process if launch is None else Labelled(process, "frontend", str(launch.number)))

    def answering(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Serve this frontend's metrics to the others of the launch while the context is open."""
        if self._siblings is None:
            return contextlib.nullcontext()
        return self._siblings.answering(lambda: generate_latest(self._own))

    async def answer(self) -> Response:
        """Return the exposition; engines that do not reply in time show their last known values."""
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(self._gather(), name="metrics-scrape")
        text = await asyncio.shield(self._shared)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def _gather(self) -> bytes:
        _, others = await asyncio.gather(self._refresh(), self._ask_others())
        up = [] if self._launch is None else [_frontends_up(self._launch, others)]
        shared = generate_latest(_Families([*self._engines.collect(), *up]))
        return shared + merge([generate_latest(self._own), *others.values()])

    async def _refresh(self) -> None:
        with contextlib.suppress(EngineUnavailableError):
            await self._pool.ping(DEADLINE_S)

    async def _ask_others(self) -> dict[int, bytes]:
        return await self._siblings.ask(DEADLINE_S) if self._siblings is not None else {}


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _frontends_up(launch: Launch, others: dict[int, bytes]) -> Metric:
    gauge = GaugeMetricFamily(
        PREFIX + "frontend_up",
        "1 for a frontend of the launch that answered this scrape, 0 for one that did not.",
        labels=["frontend"],
    )
    for number in sorted({launch.number, *launch.others, *others}):
        gauge.add_metric([str(number)], float(number == launch.number or number in others))
    return gauge

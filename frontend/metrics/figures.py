"""Which figures does a scrape collect, of the engines and of this frontend?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.metrics.batches import collect_batches
from splitserve.frontend.metrics.engines import collect_engines, collect_pool
from splitserve.frontend.metrics.failover import collect_failover
from splitserve.frontend.metrics.process import FrontendMetrics
from splitserve.frontend.metrics.queues import collect_queues
from splitserve.frontend.metrics.responses import collect_responses


class Counts(NamedTuple):
    """What the rooms of this frontend count themselves.

    Attributes:
        requests: in progress.
        connections: open.
        background: responses in progress in the background.
        response_store_errors: failures of the store of responses.
        batches, batch_lines: in progress.
        file_store_errors: failures of the store of files.
    """

    requests: int = 0
    connections: int = 0
    background: int = 0
    response_store_errors: int = 0
    batches: int = 0
    batch_lines: int = 0
    file_store_errors: int = 0


class EngineFigures(Collector):
    """Collects the engines' figures at each scrape; they are the same at every frontend."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        yield from collect_engines(self._pool.status())
        yield from collect_queues(self._pool.status())


class FrontendFigures(Collector):
    """Collects this frontend's figures at each scrape.

    Args:
        pool: its engines.
        metrics: what it has measured.
        count: asked at each scrape.
    """

    def __init__(self, pool: EnginePool, metrics: FrontendMetrics, count: Callable[[], Counts]) -> None:
        self._pool = pool
        self._metrics = metrics
        self._count = count

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        pool, metrics, name = self._pool, self._metrics, self._metrics.frontend_id
        for status in pool.status():
            if status.model is not None:
                # Its histograms begin with no request.
                metrics.model(status.model.names[0])
        stats, counts = pool.stats(), self._count()
        yield from collect_pool(pool.status(), stats, name)
        yield from collect_failover(stats.failover, stats.num_displaced, name)
        yield from collect_responses(counts.background, counts.response_store_errors, name)
        yield from collect_batches(counts.batches, counts.batch_lines, counts.file_store_errors, name)
        yield from metrics.collect(counts.requests, counts.connections)

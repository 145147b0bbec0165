"""GET /metrics: this process's figures and its engines', asked for when the scrape comes."""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

from engine_core.errors import EngineUnavailableError
from frontend.router import EnginePool

# An engine that is in a long step answers after it; its last figures are used then.
ENGINE_DEADLINE_S = 0.5


class Scrape:
    """Answers scrapes; those that overlap share one round trip, so they cannot flood the engines."""

    def __init__(self, pool: EnginePool, figures: Collector) -> None:
        """Prepare.

        Args:
            pool: the engines, pinged before each answer.
            figures: all families but those of the process and its garbage collector.
        """
        self._pool = pool
        self._shared: asyncio.Task[None] | None = None
        # A registry of our own: the library's global one would tie two apps of one process together.
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(figures)

    async def answer(self) -> Response:
        """Return the exposition; engines that do not answer in time show what they said last."""
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(self._refresh(), name="metrics-scrape")
        await asyncio.shield(self._shared)
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _refresh(self) -> None:
        with contextlib.suppress(EngineUnavailableError):
            await self._pool.ping(ENGINE_DEADLINE_S)

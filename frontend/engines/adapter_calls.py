"""Loading and unloading of adapters on all engines of a frontend: each of them does it, or none does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.messages import Call, CallKind
from splitserve.frontend.engines.readiness import Readiness
from splitserve.frontend.engines.replica import EngineReplica


class AdapterCalls:
    """Asks the engines of a pool; belongs to its event loop.

    Args:
        replicas: of the pool.
        readiness: says why no engine can be asked.
    """

    def __init__(self, replicas: Sequence[EngineReplica], readiness: Readiness) -> None:
        self._replicas = replicas
        self._readiness = readiness

    async def load(self, name: str, path: str, timeout_s: float) -> None:
        """Have every ready engine load an adapter, or none.

        Args:
            name: under which requests may ask for it.
            path: its directory, relative to that of --lora-dir or below it.
            timeout_s: how long to wait for an engine, in seconds.

        Raises:
            EngineUnavailableError: no engine is ready, or one did not reply in time.
            InvalidRequestError: an engine refuses; quotes it.
        """
        done, failures = await self._ask(Call(0, CallKind.LOAD_ADAPTER, adapter=name, path=path), timeout_s)
        if failures:
            back = Call(0, CallKind.UNLOAD_ADAPTER, adapter=name)
            await asyncio.gather(
                *(replica.client.call(back, timeout_s) for replica in done), return_exceptions=True
            )
            raise failures[0]

    async def unload(self, name: str, timeout_s: float) -> None:
        """Have every ready engine forget an adapter; raises as load() does."""
        _, failures = await self._ask(Call(0, CallKind.UNLOAD_ADAPTER, adapter=name), timeout_s)
        if failures:
            raise failures[0]

    async def _ask(self, call: Call, timeout_s: float) -> tuple[list[EngineReplica], list[BaseException]]:
        """Return the engines that did it, and the errors of the others."""
        serving = [replica for replica in self._replicas if replica.served]
        if not serving:
            raise self._readiness.nothing_ready()
        asked = (_change(replica, call, timeout_s) for replica in serving)
        results = await asyncio.gather(*asked, return_exceptions=True)
        done = [replica for replica, result in zip(serving, results, strict=True) if result is None]
        return done, [result for result in results if result is not None]


async def _change(replica: EngineReplica, call: Call, timeout_s: float) -> None:
    result = await replica.client.call(call, timeout_s)
    if not result.ok:
        error = InvalidRequestError(result.message, "lora_name", "adapter_refused")
        error.status = result.status
        raise error

"""Waits for an engine of a pool that serves, and says of each why it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.status import EngineStatus

# How long settle() waits at most: from start() on for the first word of an engine, and for a tokenizer.
CONNECT_WAIT_S = 1.0
TOKENIZER_WAIT_S = 5.0


class Readiness:
    """Who waits for the replicas of a pool; belongs to its event loop."""

    def __init__(self, replicas: Sequence[EngineReplica]) -> None:
        """Prepare; the pool adds to the replicas, and calls start() and note_change()."""
        self._replicas = replicas
        self._changed = asyncio.Event()
        self._started_s = 0.0

    def start(self) -> None:
        """Count from now how long the engines have had for their first word."""
        self._started_s = asyncio.get_running_loop().time()

    def note_change(self) -> None:
        """Let those that wait look again: state or model of a replica has changed."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until one engine is ready.

        Raises:
            EngineUnavailableError: none was in time, or all refuse; the message tells each one's state.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._any_serves():
                    if all(replica.state == "refused" for replica in self._replicas):
                        break
                    await self._change()
        if not self._any_serves():
            raise self.nothing_ready()

    async def settle(self) -> None:
        """Wait, if no engine is ready, as long as that may be for reasons of this frontend alone.

        It has just begun to connect, or loads the tokenizer of a ready engine; another frontend behind the
        same address would serve meanwhile what this one would refuse. Returns in any case.
        """
        end_s = asyncio.get_running_loop().time() + TOKENIZER_WAIT_S
        while not self._any_serves():
            if any(replica.loads_assets for replica in self._replicas):
                until_s = end_s
            elif any(replica.state == "connecting" for replica in self._replicas):
                until_s = self._started_s + CONNECT_WAIT_S
            else:
                return
            try:
                async with asyncio.timeout_at(until_s):
                    await self._change()
            except TimeoutError:
                return

    def nothing_ready(self) -> EngineUnavailableError:
        """Return the error of a request that finds no engine; it tells the state of each."""
        states = [f"{replica.address} is {_describe(replica.status())}" for replica in self._replicas]
        return EngineUnavailableError(f"no engine is ready: {'; '.join(states) or 'the pool is closed'}")

    def _any_serves(self) -> bool:
        return any(replica.served for replica in self._replicas)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _describe(status: EngineStatus) -> str:
    if status.state == "loading":
        return f"loading ({status.stage}, {status.fraction:.0%})"
    return f"{status.state} ({status.message})" if status.message else status.state

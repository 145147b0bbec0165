"""Is an engine of the pool ready, and if not, why? Waits for one and explains what is missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.status import EngineStatus

# The longest that settle() waits: from start() on for an engine's first message, and for a tokenizer.
CONNECT_WAIT_S = 1.0
TOKENIZER_WAIT_S = 5.0


class Readiness:
    """Lets callers wait for the replicas of a pool; belongs to its event loop."""

    def __init__(self, replicas: Sequence[EngineReplica]) -> None:
        """Watch the replicas; the pool adds to them and calls start() and note_change()."""
        self._replicas = replicas
        self._changed = asyncio.Event()
        self._started_s = 0.0

    def start(self) -> None:
        """Start the clock for the engines' first messages."""
        self._started_s = asyncio.get_running_loop().time()

    def note_change(self) -> None:
        """Wake the waiting callers: a replica's state or model has changed."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until one engine is ready.

        Raises:
            EngineUnavailableError: none was ready in time, or all refused; the message gives their states.
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
        """If no engine is ready, wait while only this frontend may be the reason.

        That is, it has just started to connect or is loading the tokenizer of a ready engine; meanwhile
        another frontend behind the same address could serve what this one would refuse. Returns in any case.
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
        """Return the error for a request when no engine is ready; it gives the state of each."""
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

"""Is an engine of the pool ready, and if not, why? Waits for one and explains what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

from splitserve.engine_core.errors import EngineAsleepError, EngineUnavailableError
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.status import STARTING, EngineStatus
from splitserve.frontend.engines.time_limits import least_timeout_s, left_after

# The longest that settle() waits: from start() on for an engine's first message, and for a tokenizer.
CONNECT_WAIT_S = 1.0
TOKENIZER_WAIT_S = 5.0


class Readiness:
    """Lets callers wait for the replicas of a pool; belongs to its event loop."""

    def __init__(self, replicas: Sequence[EngineReplica], failover_wait_s: float) -> None:
        """Watch the replicas; the pool adds to them and calls start() and note_change().

        Args:
            replicas: the list is kept, and may grow.
            failover_wait_s: for how long after an engine was lost requests wait for it.
        """
        self._failover_wait_s = failover_wait_s
        self._replicas = replicas
        self._changed = asyncio.Event()
        self._started_s = 0.0
        self._closed = False

    def start(self) -> None:
        """Start the clock for the engines' first messages."""
        self._started_s = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Let nobody wait any more."""
        self._closed = True
        self._changed.set()

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

    async def outlast_absence(
        self, model: str, is_over: Callable[[], bool], max_wait_s: float = math.inf
    ) -> float:
        """Wait while an engine is away that served a model a moment ago; returns in any case.

        However often it is lost meanwhile, nobody waits for longer than for one absence.

        Args:
            model: any name of it; "" for any model.
            is_over: whether nobody needs to wait, since there is an engine.
            max_wait_s: no longer than that, either.

        Returns:
            How long that took, in seconds.
        """
        if self._closed or is_over():
            return 0.0
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        end_s = begun_s + min(max_wait_s, self._failover_wait_s)
        while not self._closed and not is_over() and (until_s := self._back_until_s(model)) is not None:
            try:
                async with asyncio.timeout_at(min(until_s, end_s)):
                    await self._change()
            except TimeoutError:
                break
        return now_s() - begun_s

    async def hold(self, requests: Sequence[GenerationRequest], model: str) -> list[GenerationRequest]:
        """Hold new requests back until an engine takes them, as outlast_absence() does.

        Returns:
            The requests with what is left of their times.

        Raises:
            EngineRequestError, QueueTimeoutError: a timeout passed meanwhile.
        """
        waited_s = await self.outlast_absence(
            model, lambda: self._any_takes(model), least_timeout_s(requests)
        )
        return [left_after(waited_s, request) for request in requests]

    async def settle(self, model: str, max_wait_s: float = math.inf) -> float:
        """If no engine is ready, wait while only this frontend may be the reason, or one is briefly away.

        This frontend may be the reason when it has just started to connect or is loading the tokenizer of a
        ready engine; meanwhile another frontend behind the same address could serve what this one would
        refuse. An engine is briefly away when it served the model a moment ago. Returns in any case.

        Args:
            model: any name of it; "" for any model.
            max_wait_s: for an engine that is away, if that is shorter than the wait of failover.

        Returns:
            How long an engine was waited for that was away, in seconds.
        """
        waited_s = await self.outlast_absence(model, lambda: self._any_serves(model), max_wait_s)
        end_s = asyncio.get_running_loop().time() + TOKENIZER_WAIT_S
        while not self._any_serves():
            if any(replica.loads_assets for replica in self._replicas):
                until_s = end_s
            elif any(replica.state == "connecting" for replica in self._replicas):
                until_s = self._started_s + CONNECT_WAIT_S
            else:
                return waited_s
            try:
                async with asyncio.timeout_at(until_s):
                    await self._change()
            except TimeoutError:
                return waited_s
        return waited_s

    def nothing_ready(self, model: str = "") -> EngineUnavailableError:
        """Return the error for a request when no engine is ready; it gives the state of each.

        Args:
            model: that engines which are away served; "" if no engine of any model is ready.
        """
        missing = f"no engine of the model {model!r}" if model else "no engine"
        states = [
            f"{replica.address} is {_describe(replica.status())}"
            for replica in self._replicas
            if not model or model in replica.known_names
        ]
        kind = EngineAsleepError if self._is_asleep(model) else EngineUnavailableError
        return kind(f"{missing} is ready: {'; '.join(states) or 'the pool is closed'}")

    def _back_until_s(self, model: str) -> float | None:
        """Return until when an engine of a model that is away may come back; None if none may."""
        if self._is_asleep(model):
            return None
        since = [
            replica.gone_since_s
            for replica in self._replicas
            if replica.gone_since_s is not None and _knows(replica, model)
        ]
        until_s = max(since, default=0.0) + self._failover_wait_s
        return until_s if since and asyncio.get_running_loop().time() < until_s else None

    def _is_asleep(self, model: str) -> bool:
        """Return whether every engine that serves a model, or did, sleeps: nobody waits for those."""
        known = [replica.status().is_asleep for replica in self._replicas if _knows(replica, model)]
        return bool(known) and all(known)

    def _any_serves(self, model: str = "") -> bool:
        return any(_serves(replica, model) for replica in self._replicas)

    def _any_takes(self, model: str) -> bool:
        """Return whether an engine accepts requests for a model; "" is any model."""
        return any(replica.takes_requests and _serves(replica, model) for replica in self._replicas)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _serves(replica: EngineReplica, model: str) -> bool:
    """Return whether a replica serves a model now; "" is any model."""
    served = replica.served
    return served is not None and (not model or served.named(model) is not None)


def _knows(replica: EngineReplica, model: str) -> bool:
    """Return whether a replica serves a model, or did when it was last ready; "" is any model."""
    return model in replica.known_names if model else bool(replica.known_names)


def _describe(status: EngineStatus) -> str:
    if status.state in STARTING:
        return f"{status.state} ({status.stage}, {status.fraction:.0%})"
    return f"{status.state} ({status.message})" if status.message else status.state

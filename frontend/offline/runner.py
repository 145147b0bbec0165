"""A thread with an event loop, an engine-core process and a pool connected to it, for the LLM class.

Once it has served, an engine that ends or hangs is started again, as often as `splitserve serve` would;
requests go on with the next one. After that, or if the model cannot be served any more, they fail with the
engine's error.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from splitserve.engine_core.errors import (
    ConfigError,
    EngineUnavailableError,
    ModelLoadError,
    SplitServeError,
)
from splitserve.engine_core.process.heartbeats import LOOK_INTERVAL_S
from splitserve.engine_core.process.restart_intensity import RestartIntensity
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.engines.questions import AWAKE
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.status import EngineStatus
from splitserve.frontend.offline.engine import EngineProcess

T = TypeVar("T")
J = TypeVar("J")

_POLL_S = 0.1
_READY_POLL_S = 0.2
# A model that has kept its weights wakes up in a fraction of the above.
_WAKE_POLL_S = 0.01
_LAST_WORDS_S = 2.0
# Answered between two steps, which may be long ones.
_CALL_TIMEOUT_S = 60.0


def _do_nothing() -> None:
    pass


class OfflineRunner:
    """Owns thread, process and pool; its plain methods are for other threads, its coroutines for the loop."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        # A daemon: the interpreter must not wait for it before its exit handlers, which close it, have run.
        self._thread = threading.Thread(target=self._loop.run_forever, name="splitserve-llm", daemon=True)
        self._thread.start()
        self._engine: EngineProcess | None = None
        self._pool: EnginePool | None = None
        self._flags: Sequence[str] = ()
        self._keeper: asyncio.Task[None] | None = None
        self._failure: SplitServeError | None = None

    @property
    def engine_pid(self) -> int:
        """Process id of the engine-core."""
        assert self._engine is not None
        return self._engine.pid

    def start(
        self,
        flags: Sequence[str],
        timeout_s: float,
        on_progress: Callable[[EngineStatus], None],
        chat_template: str = "",
    ) -> ServedModel:
        """Start the engine and wait until it serves.

        Args:
            flags: of engine-core.
            timeout_s: for all of it.
            on_progress: told the engine's status about ten times a second, in the calling thread.
            chat_template: name or file of the template; "" is the checkpoint's.

        Raises:
            SplitServeError: what the engine ended with, or EngineUnavailableError after timeout_s.
        """
        self.run(self._start(flags, timeout_s, chat_template))
        served = self.run(self._wait_ready(timeout_s), lambda: on_progress(self.run(self._status())))
        self.run(self._keep())
        return served

    def run(self, coroutine: Coroutine[Any, Any, T], on_poll: Callable[[], None] = _do_nothing) -> T:
        """Run a coroutine on the loop and wait for it; an interrupt of the calling thread cancels it.

        Args:
            coroutine: any.
            on_poll: called about ten times a second, in the calling thread.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], _POLL_S).done:
                on_poll()
        except BaseException:
            future.cancel()
            raise
        on_poll()
        return future.result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop, not waiting for it; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def generate(
        self, request: GenerationRequest, model: str = ""
    ) -> AsyncGenerator[OutputDelta, None]:
        """Run one request; `model` is the name of an adapter, "" for none.

        Raises:
            SplitServeError: as EnginePool.generate(); an engine that ended is quoted.
        """
        assert self._pool is not None
        try:
            async with contextlib.aclosing(self._pool.generate(model, request)) as deltas:
                async for delta in deltas:
                    yield delta
        except EngineUnavailableError as error:
            raise self._failure or error from None

    async def reset_prefix_cache(self) -> None:
        """Let the engine forget its cached prefixes.

        Raises:
            SplitServeError: the engine ended, or does not answer.
        """
        assert self._pool is not None
        try:
            await self._pool.reset_prefix_cache(_CALL_TIMEOUT_S)
        except EngineUnavailableError as error:
            raise self._failure or error from None

    async def sleep(self, level: int) -> None:
        """Have the engine give up memory, and wait until that is free; see LLM.sleep().

        Raises:
            SplitServeError: the engine ended, or does not answer.
        """
        assert self._pool is not None
        try:
            await self._pool.rest(level, _CALL_TIMEOUT_S)
        except EngineUnavailableError as error:
            raise self._failure or error from None

    async def wake_up(self, timeout_s: float) -> None:
        """Have the engine take its memory again, and wait until it serves.

        Raises:
            SplitServeError: the engine ended, or does not serve in time.
        """
        assert self._pool is not None
        try:
            await self._pool.rest(AWAKE, _CALL_TIMEOUT_S)
            async with asyncio.timeout(timeout_s):
                while (await self._status()).state != "ready":
                    await asyncio.sleep(_WAKE_POLL_S)
        except EngineUnavailableError as error:
            raise self._failure or error from None
        except TimeoutError:
            raise EngineUnavailableError(f"the engine was not ready within {timeout_s:g} s") from None

    async def fresh_status(self) -> list[EngineStatus]:
        """Return the engine's status of now.

        Raises:
            SplitServeError: the engine ended, or does not answer.
        """
        assert self._pool is not None
        try:
            return await self._pool.ping(_CALL_TIMEOUT_S)
        except EngineUnavailableError as error:
            raise self._failure or error from None

    def close(self) -> None:
        """End process, pool and thread; safe to call twice."""
        if self._loop.is_closed():
            return
        if threading.current_thread() is self._thread:
            # The garbage collector may drop the owner on any thread, and this one cannot wait for itself.
            threading.Thread(target=self.close).start()
            return
        try:
            self.run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _start(self, flags: Sequence[str], timeout_s: float, chat_template: str) -> None:
        self._engine = EngineProcess(flags)
        # Nobody else could answer: requests wait for the engine as long as for the first start.
        self._pool = EnginePool(
            [self._engine.address], "offline", chat_template=chat_template, failover_wait_s=timeout_s
        )
        await self._pool.start()
        self._flags = flags

    async def _keep(self) -> None:
        """Restart the engine from now on whenever it ends or hangs."""
        self._keeper = asyncio.create_task(self._keep_running(), name="engine-keeper")

    async def _keep_running(self) -> None:
        intensity = RestartIntensity()
        while True:
            assert self._engine is not None
            if not await self._engine.wait_end(LOOK_INTERVAL_S):
                self._engine.kill_if_hung()
                continue
            failure = self._engine.failure()
            intensity.count_end(self._loop.time())
            delay_s = intensity.delay_s()
            # The same error would come again.
            if isinstance(failure, ConfigError | ModelLoadError) or math.isinf(delay_s):
                await self._give_up(failure)
                return
            await asyncio.sleep(delay_s)
            try:
                successor = EngineProcess(self._flags, self._engine.address)
            except (OSError, ConfigError) as error:
                await self._give_up(EngineUnavailableError(f"the engine-core cannot be restarted: {error}"))
                return
            self._engine.leave()
            self._engine = successor

    async def _give_up(self, failure: SplitServeError | None) -> None:
        assert self._pool is not None
        self._failure = failure
        await self._pool.close()

    async def _wait_ready(self, timeout_s: float) -> ServedModel:
        assert self._engine is not None
        assert self._pool is not None
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                await self._pool.wait_ready(_READY_POLL_S)
                return self._pool.find_model("")
            except EngineUnavailableError:
                if self._engine.ended and (failure := await self._last_words()) is not None:
                    raise failure from None
                if time.monotonic() > deadline_s or (await self._status()).state == "refused":
                    raise

    async def _status(self) -> EngineStatus:
        assert self._pool is not None
        return self._pool.status()[0]

    async def _last_words(self) -> Exception | None:
        """Return why the engine ended, None if it runs on."""
        assert self._engine is not None
        await self._engine.wait_end(_LAST_WORDS_S)
        return self._engine.failure()

    async def _stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._pool is not None:
            await self._pool.close()
        if self._engine is not None:
            await self._engine.stop()


async def run_bounded(
    jobs: Sequence[J], run_one: Callable[[J], Coroutine[Any, Any, T]], max_in_flight: int
) -> list[T]:
    """Run a coroutine per job, at most max_in_flight at a time; return their results in the order of jobs.

    Raises:
        Exception: the first failure; all other coroutines are cancelled.
    """
    results: dict[int, T] = {}
    numbered = iter(enumerate(jobs))

    async def work() -> None:
        for number, job in numbered:
            results[number] = await run_one(job)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_in_flight, len(jobs))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[number] for number in range(len(jobs))]

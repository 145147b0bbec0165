"""How does an engine sleep, and wake up?

    state              event                        next
    awake              sleep(keeps_weights=True)    releasing: requests wait again, KV caches are freed
    awake              sleep(keeps_weights=False)   releasing: requests wait again, workers are ended
    releasing          MemoryReleased               asleep: whoever asked for it hears so
    releasing, asleep  sleep(), deeper than before  releasing: the workers are ended
    releasing, asleep  a worker is lost             releasing: the others are ended, too
    releasing, asleep  wake_up()                    awake: workers allocate a KV cache, or are started

What the workers still say of steps from before is nobody's: no frontend was told, and the tokens are sampled
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import EngineUnavailableError, SplitServeError, WorkerError
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    FromWorkerMessage,
    GrammarCompiled,
    MemoryReleased,
    ModelRunnerOutput,
)
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.server.absence.recovery import Recovery
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.startup import Startup

_log = logging.getLogger("engine_core")

# Callers that may wait at the same time until the engine sleeps.
MAX_WAITING = 64


class Rest:
    """Puts the engine to sleep and wakes it up; owned by the busy loop's thread.

    Attributes:
        is_asleep: whether no step may be planned until wake_up().
        is_releasing: whether MemoryReleased is still to come.
    """

    def __init__(self, startup: Startup, handler: FrontendHandler, recovery: Recovery) -> None:
        self._startup = startup
        self._handler = handler
        self._recovery = recovery
        self._has_workers = True
        self._waiting: list[Callable[[], None]] = []
        self.is_asleep = False
        self.is_releasing = False

    def sleep(self, engine: EngineCore, keeps_weights: bool, done: Callable[[], None]) -> None:
        """Give up the KV cache, or all memory of the workers, and put all requests back until wake_up().

        An engine that sleeps gives up its weights as well if it is told to, and never takes them back.

        Args:
            engine: whose requests they are.
            keeps_weights: whether the workers stay.
            done: called once the memory is free, or is wanted again.

        Raises:
            EngineUnavailableError: workers are being started, or cannot do this; or too many wait for it.
            WorkerError: a worker is gone.
        """
        if not self.is_asleep and self._recovery.is_active:
            raise EngineUnavailableError(f"the engine has lost its workers and is {self._startup.stage}")
        if len(self._waiting) == MAX_WAITING:
            raise EngineUnavailableError("too many are waiting for the engine to sleep")
        was_asleep = self.is_asleep
        if not was_asleep or (self._has_workers and not keeps_weights):
            self._startup.sleep(keeps_weights=keeps_weights)
            self._has_workers = keeps_weights
            self.is_asleep = self.is_releasing = True
        self._waiting.append(done)
        if not was_asleep:
            engine.release_workers()
            log_event(_log, logging.INFO, "asleep", requests=engine.num_requests, keeps_weights=keeps_weights)
            self._handler.recover()
        if not self.is_releasing:
            self._tell()

    def wake_up(self) -> None:
        """Take the memory again; requests go on once it is there."""
        if not self.is_asleep:
            return
        had_workers = self._has_workers
        self.is_asleep, self._has_workers = False, True
        self._tell()
        self._recovery.await_workers()
        if not (had_workers and self._allocate()):
            self.is_releasing = False
            self._startup.begin_again()
        self._handler.announce()

    def on_message(self, message: FromWorkerMessage) -> None:
        """Take a message of workers that are to free memory.

        Raises:
            WorkerError: it is of another kind than what may come.
        """
        if isinstance(message, MemoryReleased):
            self.is_releasing = False
            self._tell()
        elif not isinstance(message, ModelRunnerOutput | GrammarCompiled | AdapterLoaded):
            raise WorkerError(f"the worker sent {type(message).__name__} while it was to free memory")

    def lose(self, fault: SplitServeError) -> bool:
        """Workers are lost; return whether the engine sleeps, so that they are not needed.

        Raises:
            SplitServeError: the fault, if they were ended and cannot be.
        """
        self.is_releasing = False
        if not self.is_asleep:
            return False
        if not self._has_workers:
            raise fault
        log_event(_log, logging.ERROR, "workers lost while asleep", error=str(fault))
        self._startup.sleep(keeps_weights=False)
        self._has_workers = False
        self.is_releasing = True
        return True

    def _allocate(self) -> bool:
        """Have the workers allocate what they had; return whether they are all there."""
        try:
            self._startup.allocate_again()
        except WorkerError as fault:
            log_event(_log, logging.ERROR, "workers lost while asleep", error=str(fault))
            return False
        return True

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

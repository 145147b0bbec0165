"""How does an engine go on when its workers are lost?

    state        event                      next
    serving      WorkerError                recovering: requests wait again, new workers take the place of all
    recovering   messages of the start      recovering
    recovering   KVCacheReady               serving: frontends hear Ready of the same epoch
    recovering   WorkerError                recovering: once more
    recovering   a worker was stopped       the same, after STOPPED_S
    recovering   no progress                the same, after --load-timeout
    any          WorkerError, the sixth     the error ends the engine
                 within a minute, or the
                 third while recovering

A checkpoint that was changed so that the workers refuse it, or find another model, ends the engine at once:
new workers would find the same, and a new engine may serve it. Every other fault of a start counts as a loss.
"""

from __future__ import annotations

import logging
from collections import deque

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import ConfigError, ModelLoadError, WorkerError
from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.startup import Startup

_log = logging.getLogger("engine_core")

MAX_LOSSES = 5
LOSSES_WITHIN_S = 60.0
# Starts that fail, one after the other: the machine, or a cluster, has no place for the workers any more.
MAX_FAILED_STARTS = 3
# A worker that was stopped by a signal while it starts sends nothing, and nothing is overdue.
STOPPED_S = 2.0


class Recovery:
    """Brings lost workers back while the engine keeps its requests; owned by the busy loop's thread.

    Attributes:
        is_active: whether workers are being started again, or will be; no step may be planned meanwhile.
    """

    def __init__(self, startup: Startup, handler: FrontendHandler, clock: Clock) -> None:
        self._startup = startup
        self._handler = handler
        self._clock = clock
        # Times of the latest losses, seconds.
        self._losses_s: deque[float] = deque(maxlen=MAX_LOSSES)
        self._begin_s = 0.0
        self._num_failed_starts = 0
        self._stopped_since_s: float | None = None
        self.is_active = False

    def await_workers(self) -> None:
        """Workers that were not lost are about to be started or prepared again; see Rest."""
        self._begin_s, self._num_failed_starts, self._stopped_since_s = self._clock.monotonic(), 0, None
        self.is_active = True

    def begin(self, engine: EngineCore, fault: WorkerError | ConfigError | ModelLoadError) -> None:
        """The workers are lost: put all requests back and start new workers.

        Raises:
            WorkerError: workers were lost too often, cannot be started, or refuse a changed checkpoint.
            ConfigError, ModelLoadError: it was no fault of a start.
        """
        loss = self._as_loss(fault)
        now_s = self._clock.monotonic()
        if len(self._losses_s) == MAX_LOSSES and now_s - self._losses_s[0] < LOSSES_WITHIN_S:
            raise WorkerError(f"lost workers {MAX_LOSSES + 1} times within {LOSSES_WITHIN_S:g} s: {loss}")
        self._losses_s.append(now_s)
        if not self.is_active:
            self._begin_s = now_s
            self._num_failed_starts = 0
        else:
            self._num_failed_starts += 1
        if self._num_failed_starts == MAX_FAILED_STARTS:
            raise WorkerError(f"the workers could not be started again {MAX_FAILED_STARTS} times: {loss}")
        self.is_active = True
        self._stopped_since_s = None
        log_event(_log, logging.ERROR, "workers lost", error=str(loss), requests=engine.num_requests)
        engine.start_over()
        self._startup.begin_again()
        self._handler.recover()
        reach("engine.recovering")

    def look(self, stopped: str) -> None:
        """Look after workers that are starting; once per round.

        Args:
            stopped: names those whose process was stopped by a signal.

        Raises:
            WorkerError: they have been for too long.
        """
        now_s = self._clock.monotonic()
        if not stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        elif now_s - self._stopped_since_s >= STOPPED_S:
            raise WorkerError(f"stopped by a signal while starting: {stopped}")

    def on_message(self, message: FromWorkerMessage) -> None:
        """Take a message of the workers that are starting."""
        stage = self._startup.stage
        loaded = self._startup.on_message(message)
        if loaded is not None:
            self.is_active = False
            self._handler.recovered()
            took_s = self._clock.monotonic() - self._begin_s
            log_event(_log, logging.INFO, "workers are back", took_s=took_s)
        elif self._startup.stage != stage:
            self._handler.announce()

    def _as_loss(self, fault: WorkerError | ConfigError | ModelLoadError) -> WorkerError:
        if isinstance(fault, WorkerError):
            return fault
        if not self.is_active:
            raise fault
        if self._startup.has_changed():
            raise WorkerError(f"the checkpoint was changed while it was served: {fault}") from fault
        # What was asked for has fitted before, and the files have been read: something is short now.
        return WorkerError(str(fault))

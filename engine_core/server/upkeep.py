"""What the busy loop does by the clock: leases, probes, timeouts, retries, updates, the integrity check."""

from __future__ import annotations

import logging

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.process.heartbeats import Heart
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import FrontendTable

_log = logging.getLogger("engine_core")

LOADING_INTERVAL_S = 1.0
STALLED_RETRY_S = 0.01
EXPIRE_INTERVAL_S = 0.1
INTEGRITY_DELAY_S = 1.0
# A check takes time proportional to the pool (0.16 s for 65,536 blocks); a request may arrive meanwhile.
MAX_INTEGRITY_SHARE = 0.001
# libzmq reports the end of a connection a moment before a send to it fails.
PROBE_DELAYS_S = (0.02, 0.5)
# How long the loop may stand still while it serves: it waits for nothing, but steps may take all processors.
SERVING_SILENCE_S = 2.0
SILENT_STEPS = 20
SILENCE_INTERVAL_S = 1.0
# With a pool of a hundred million tokens.
CHECK_SILENCE_S = 30.0
NEVER = float("inf")


class Upkeep:
    """Knows what is due when; owned by the busy loop's thread.

    An idle engine has nothing due but the next lease, so its loop sleeps.
    """

    def __init__(
        self, clock: Clock, handler: FrontendHandler, table: FrontendTable, heart: Heart | None = None
    ) -> None:
        """Prepare it.

        Args:
            clock: of the loop.
            handler: of the frontends' messages.
            table: of the frontends.
            heart: told how long the loop may stand still; None if nobody watches.
        """
        self._clock = clock
        self._handler = handler
        self._table = table
        self._heart = heart or Heart(SERVING_SILENCE_S)
        self._silence_due_s = clock.monotonic() + SILENCE_INTERVAL_S
        self._probes_s: list[float] = []
        self._loading_s = clock.monotonic()
        self._expire_s = NEVER
        self._integrity_s = NEVER
        self._no_integrity_before_s = 0.0

    def on_disconnect(self) -> None:
        """Note that some connection ended, to find out soon whose it was."""
        soon_s, late_s = (self._clock.monotonic() + delay for delay in PROBE_DELAYS_S)
        # An earlier probe stays scheduled: connections that come and go must not postpone it forever.
        self._probes_s = [min([soon_s, *self._probes_s]), late_s]

    def on_work(self) -> None:
        """Note that a step was submitted, to check the invariants once the engine is idle."""
        self._integrity_s = max(self._clock.monotonic() + INTEGRITY_DELAY_S, self._no_integrity_before_s)

    def next_due_s(self, engine: EngineCore | None) -> float:
        """Return the time by which run() has to be called again; inf when nothing is due."""
        due = [self._integrity_s, *self._probes_s]
        expiry_s = self._table.next_expiry_s()
        if expiry_s is not None:
            due.append(expiry_s)
        if self._table.has_stalled:
            due.append(self._clock.monotonic() + STALLED_RETRY_S)
        if self._handler.phase.is_starting:
            due.append(self._loading_s)
        if engine is not None and engine.has_requests:
            due += (self._expire_s, engine.outputs_due_s)
        return min(due)

    def run(self, engine: EngineCore | None) -> None:
        """Do what is due.

        Raises:
            IntegrityError: the engine's invariants do not hold.
        """
        now_s = self._clock.monotonic()
        self._handler.drop_silent()
        if self._probes_s and now_s >= self._probes_s[0]:
            self._probes_s.pop(0)
            self._handler.probe()
        if self._handler.phase.is_starting and now_s >= self._loading_s:
            self._loading_s = now_s + LOADING_INTERVAL_S
            self._handler.announce()
        if engine is not None:
            self._look_after(engine, now_s)

    def _look_after(self, engine: EngineCore, now_s: float) -> None:
        engine.expire()
        self._expire_s = now_s + EXPIRE_INTERVAL_S
        if now_s >= self._silence_due_s and self._handler.phase.is_accepting and engine.has_requests:
            self._silence_due_s = now_s + SILENCE_INTERVAL_S
            self._heart.limit(max(SERVING_SILENCE_S, SILENT_STEPS * engine.step_times.median_s()))
        if now_s >= self._integrity_s:
            self._integrity_s = NEVER
            if not engine.has_requests:
                self._check_integrity(engine)

    def _check_integrity(self, engine: EngineCore) -> None:
        begin_s = self._clock.monotonic()
        self._heart.announce(CHECK_SILENCE_S)
        engine.check_integrity()
        end_s = self._clock.monotonic()
        self._no_integrity_before_s = end_s + (end_s - begin_s) / MAX_INTEGRITY_SHARE
        log_event(_log, logging.DEBUG, "integrity checked", took_s=end_s - begin_s)

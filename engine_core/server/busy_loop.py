"""What happens in each round of the engine-core: one thread polls frontends, worker and signals.

round: wait for an event or the next deadline
       handle signals, key checks, frontends' messages (for a bounded time), the workers' messages
       plan and submit steps while the executor has room; if the workers are lost, start them again
       send outputs, then do what is due by the clock
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.errors import EXIT_OK, SplitServeError
from splitserve.engine_core.executor.base import Executor
from splitserve.engine_core.ipc.addresses import ipc_path, is_ipc
from splitserve.engine_core.ipc.curve import KeyGuard, ServerKeys, load_server_keys
from splitserve.engine_core.ipc.sockets import SocketLimits
from splitserve.engine_core.ipc.transport import SEND_HWM, BoundRouter
from splitserve.engine_core.ipc.wire import LogLevelName
from splitserve.engine_core.kv_events.publisher import KVEventPublisher
from splitserve.engine_core.process.children import DeathSignals
from splitserve.engine_core.process.file_limit import raise_file_limit
from splitserve.engine_core.process.heartbeats import join_heartbeats
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event, set_log_level
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.process.runtime_directory import leave_runtime_directory
from splitserve.engine_core.process.signals import SignalInbox
from splitserve.engine_core.request import TOKEN_BYTES
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import MAX_FRONTENDS, FrontendTable
from splitserve.engine_core.server.inbox import Inbox
from splitserve.engine_core.server.phase import Phase
from splitserve.engine_core.server.reception import Reception
from splitserve.engine_core.server.request_log import RequestLog
from splitserve.engine_core.server.startup import Loaded, Startup
from splitserve.engine_core.server.upkeep import NEVER, SERVING_SILENCE_S, Upkeep
from splitserve.engine_core.server.worker_side import WorkerSide
from splitserve.engine_core.settings.worker_settings import MAX_SEQUENCE_TOKENS

_log = logging.getLogger("engine_core")

# Bytes of a request besides its tokens: all its parameters, with room to spare.
REQUEST_BYTES = 2 * 2**20
HELLO_PATIENCE_S = 30.0
# The maximum number of frontends, and as many again that have yet to say hello or were dropped.
MAX_CONNECTIONS = 2 * MAX_FRONTENDS
SHUTDOWN_LINGER_MS = 1000
# Give all requests back to the frontends, leave the workers to a successor, end.
HAND_OVER = signal.SIGUSR1
WORKER_SHUTDOWN_S = 5.0
# How long the loop may stand still while it starts and ends, when it waits for processes and files.
STARTING_SILENCE_S = 30.0
ENDING_SILENCE_S = 30.0


def frontend_limits(config: EngineConfig) -> SocketLimits:
    """Return the limits of the frontends' socket: its longest message is the longest possible request."""
    max_tokens = config.max_model_len or MAX_SEQUENCE_TOKENS
    return SocketLimits(
        TOKEN_BYTES * max_tokens + REQUEST_BYTES,
        SEND_HWM,
        max_connections=MAX_CONNECTIONS,
        patience_s=HELLO_PATIENCE_S,
    )


class BusyLoop:
    """One engine-core process: owns the sockets, the executor and the engine.

    Args:
        config: validated.
        executor: not started yet.
        clock: for leases, deadlines and timings.
    """

    def __init__(self, config: EngineConfig, executor: Executor, clock: Clock) -> None:
        """Bind the frontends' socket and take over SIGTERM and SIGINT.

        Raises:
            ConfigError: the address or the keys cannot be used.
        """
        raise_file_limit()
        keys = load_server_keys(config.curve_dir) if config.curve_dir else None
        self._heart = join_heartbeats(config.heartbeat_fd, 0, STARTING_SILENCE_S)
        self._config = config
        self._executor = executor
        self._clock = clock
        self._epoch = time.time_ns()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guard = KeyGuard(self._context, keys.accepted) if keys else None
        self._router = BoundRouter(
            self._context,
            config.listen,
            keys,
            allow_insecure_tcp=config.allow_insecure_tcp,
            limits=frontend_limits(config),
        )
        reach("engine.bound")
        self._signals = SignalInbox(HAND_OVER)
        self._death_signals = DeathSignals()
        self._report = StartupReport(clock)
        self._startup = Startup(config, executor, self._report)
        table = FrontendTable(self._router.send, config.lease_s)
        self._handler = FrontendHandler(
            config, clock, self._epoch, table, self._startup, lambda: self._workers.stalled()
        )
        self._handler.calls.on_log_level = self._set_log_level
        self._handler.calls.on_sleep = lambda *how: self._workers.sleep(*how)
        self._handler.calls.on_wake_up = lambda: self._workers.wake_up()
        self._request_log = RequestLog(table)
        self._upkeep = Upkeep(clock, self._handler, table, self._heart)
        self._workers = WorkerSide(
            executor, self._startup, self._handler, clock, self._serve, self._upkeep.on_work
        )
        self._reception = Reception(self._router, self._handler, table, clock, Inbox())
        self._kv_events = self._publish_kv_events(keys) if config.kv_events_address else None
        self._engine: EngineCore | None = None
        self._poller = zmq.Poller()
        self._drain_end_s = NEVER
        self._exit_code: int | None = None
        self._leaves_workers = False
        self._serves = False
        executor.before_waiting = lambda: self._heart.announce(STARTING_SILENCE_S)

    def _publish_kv_events(self, keys: ServerKeys | None) -> KVEventPublisher:
        try:
            return KVEventPublisher(self._context, self._config, keys, self._clock, self._handler.faults)
        except BaseException:
            self._router.close()
            raise

    def _set_log_level(self, level: LogLevelName) -> None:
        set_log_level(level)
        self._executor.set_log_level(level)

    def run(self) -> int:
        """Serve until a signal ends it; return the exit code.

        Raises:
            WorkerError: the worker was lost.
            ModelLoadError, ConfigError: the model cannot be served at all, or not with this configuration.
        """
        log_event(_log, logging.INFO, "listening", address=self._router.address)
        try:
            self._watch_own_sockets()
            self._startup.begin()
            while self._exit_code is None:
                self._round()
            return self._exit_code
        except (SplitServeError, KeyboardInterrupt):
            raise
        except Exception:
            # A bug of ours; the workers know nothing of it.
            self._executor.leave()
            raise
        finally:
            self._close()

    def _watch_own_sockets(self) -> None:
        self._poller.register(self._router.socket, zmq.POLLIN)
        self._poller.register(self._router.connections.monitor, zmq.POLLIN)
        self._poller.register(self._signals.fileno(), zmq.POLLIN)
        if self._guard is not None:
            self._poller.register(self._guard.socket, zmq.POLLIN)
        for source in self._kv_events.sources if self._kv_events is not None else ():
            self._poller.register(source, zmq.POLLIN)

    def _round(self) -> None:
        self._workers.register(self._poller)
        ready = dict(self._poller.poll(self._poll_timeout_ms()))
        self._heart.beat()
        if self._signals.fileno() in ready:
            for number in self._signals.take():
                self._on_signal(number)
        if self._guard is not None and self._guard.socket in ready:
            self._guard.handle()
        if (
            self._router.connections.monitor in ready
            or self._clock.monotonic() >= self._reception.next_due_s()
        ):
            self._look_after_connections()
        if self._router.socket in ready or self._reception.has_messages:
            self._reception.run()
        self._workers.attend(ready)
        self._show_phase()
        self._upkeep.run(self._engine)
        self._handler.send_outputs()
        if self._kv_events is not None:
            self._kv_events.run(ready)
        self._end_drain()

    def _show_phase(self) -> None:
        """Tell whoever watches this process whether it serves."""
        phase = self._handler.phase
        if phase.is_accepting != self._serves:
            self._serves = phase.is_accepting
            self._heart.limit(STARTING_SILENCE_S if phase.is_starting else SERVING_SILENCE_S)
            self._heart.serve(self._serves)

    def _poll_timeout_ms(self) -> int | None:
        if self._reception.has_messages:
            return 0
        due_s = min(self._upkeep.next_due_s(self._engine), self._reception.next_due_s(), self._drain_end_s)
        if self._kv_events is not None:
            due_s = min(due_s, self._kv_events.next_due_s())
        due_s = min(due_s, self._workers.next_due_s())
        due_s -= self._clock.monotonic()
        due_s = min(due_s, self._heart.interval_s)
        # Rounded up; otherwise the loop would spin for the last millisecond before a deadline.
        return None if due_s == NEVER else max(0, math.ceil(due_s * 1000))

    def _look_after_connections(self) -> None:
        if self._reception.look_after():
            self._upkeep.on_disconnect()

    def _serve(self, loaded: Loaded) -> EngineCore:
        self._request_log.serve(loaded.model)
        engine = EngineCore(
            loaded.scheduler,
            loaded.model,
            self._epoch,
            self._clock,
            listeners=Listeners(
                kv_events=self._kv_events.begin(loaded.scheduler) if self._kv_events else None,
                on_end=self._request_log.ended,
                on_wait=self._request_log.waits,
            ),
            ledger=self._executor.ledger(),
        )
        self._engine = engine
        self._handler.serve(engine, loaded)
        log_event(_log, logging.INFO, "ready", address=self._router.address, took_s=self._report.done())
        return engine

    def _on_signal(self, number: signal.Signals) -> None:
        if number == HAND_OVER and self._engine is not None:
            log_event(_log, logging.INFO, "handing over", signal=number.name)
            self._handler.hand_over("the engine is being replaced")
            self._leaves_workers = True
            self._exit_code = EXIT_OK
            return
        if self._death_signals.is_repetition(self._clock.monotonic()):
            return
        phase = self._handler.phase.current
        if phase is Phase.DRAINING:
            log_event(_log, logging.WARNING, "second signal, ending at once", signal=number.name)
            self._exit_code = 128 + number
        elif phase is Phase.LOADING:
            log_event(_log, logging.INFO, "ending before it was ready", signal=number.name)
            self._exit_code = EXIT_OK
        else:
            timeout_s = self._config.drain_timeout_s
            log_event(_log, logging.INFO, "draining", signal=number.name, timeout_s=timeout_s)
            self._handler.drain(timeout_s)
            self._drain_end_s = self._clock.monotonic() + timeout_s

    def _end_drain(self) -> None:
        if not self._handler.phase.is_draining or self._engine is None:
            return
        if self._engine.has_requests:
            if self._clock.monotonic() < self._drain_end_s:
                return
            self._handler.hand_over("the engine is shutting down")
        if self._exit_code is None:
            self._exit_code = EXIT_OK

    def _close(self) -> None:
        orderly = self._exit_code == EXIT_OK
        self._heart.announce(ENDING_SILENCE_S)
        self._report.close()
        with contextlib.ExitStack() as rest:
            # In reverse order, and everything, even if ending the executor fails.
            rest.callback(self._signals.close)
            rest.callback(self._context.term)
            if self._guard is not None:
                rest.callback(self._guard.close)
            if self._kv_events is not None:
                rest.callback(self._kv_events.close)
            if is_ipc(self._config.listen):
                # After the socket has been removed from it.
                rest.callback(leave_runtime_directory, os.path.dirname(ipc_path(self._config.listen)))
            if orderly and not self._leaves_workers:
                rest.callback(self._handler.calls.adapters.forget)
            rest.callback(self._router.close, SHUTDOWN_LINGER_MS if orderly else 0)
            if self._leaves_workers:
                self._executor.leave()
            else:
                # A worker that is still loading would not read the message that asks it to end.
                self._executor.shutdown(WORKER_SHUTDOWN_S if orderly and self._engine is not None else 0.0)
        log_event(
            _log, logging.INFO, "ended", code=self._exit_code if self._exit_code is not None else "error"
        )

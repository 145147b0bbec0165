"""The main loop of a worker process: which messages it exchanges with its engine, and in which order.

worker sends         engine sends      then the worker
WorkerHello          Configure         imports torch, loads
LoadProgress...
WorkerReady          InitKVCache       allocates, warms up
KVCacheReady         SchedulerOutput   computes, replies ModelRunnerOutput
WorkerFailed                           ends
                     Shutdown          ends
"""

from __future__ import annotations

import gc
import logging
import os
import time
from typing import TYPE_CHECKING

import zmq

from splitserve.engine_core.errors import (
    EXIT_CONFIG,
    EXIT_MODEL,
    EXIT_OK,
    EXIT_WORKER,
    ConfigError,
    SplitServeError,
    WorkerError,
)
from splitserve.engine_core.ipc.codec import encode, to_worker_decoder
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import (
    Configure,
    FromWorkerMessage,
    InitKVCache,
    LoadProgress,
    SchedulerOutput,
    Shutdown,
    WorkerFailed,
    WorkerHello,
)
from splitserve.engine_core.process.logs import configure_logging, log_event
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.batch.replies import Replies
from splitserve.worker.config import WorkerConfig

if TYPE_CHECKING:
    from splitserve.worker.worker import Worker

logger = logging.getLogger(__name__)

_MAX_PROGRESS_PER_S = 10
# How often a waiting worker checks that its engine is still alive.
_PARENT_CHECK_MS = 1000
_LAST_WORDS_MS = 2000


class EngineGoneError(Exception):
    """The process that started this worker has ended."""


class EngineLink:
    """The worker's end of the link: a DEALER socket whose identity is the rank; single-threaded."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        place: WorkerPlace,
        parent_pid: int,
        keys: ClientKeys | None = None,
    ) -> None:
        """Connect; the engine need not have bound its socket yet.

        Raises:
            ConfigError: libzmq rejects the address.
        """
        self._parent_pid = parent_pid
        self._socket = connect_engine(context, place.connect, str(place.rank).encode(), keys)
        self._socket.setsockopt(zmq.RCVTIMEO, _PARENT_CHECK_MS)
        self._socket.setsockopt(zmq.SNDTIMEO, _PARENT_CHECK_MS)

    def send(self, message: FromWorkerMessage) -> None:
        """Send one message, blocking while the engine is not connected or cannot keep up.

        Raises:
            EngineGoneError: the engine exited in the meantime.
        """
        frame = encode(message)
        while True:
            try:
                return self._socket.send(frame)
            except zmq.Again:
                self._check_parent()

    def receive(self) -> bytes:
        """Wait for the next frame.

        Raises:
            EngineGoneError: the engine exited in the meantime.
        """
        while True:
            try:
                return self._socket.recv()
            except zmq.Again:
                self._check_parent()

    def has_message(self) -> bool:
        """Whether receive() would return at once."""
        events = self._socket.getsockopt(zmq.EVENTS)
        return isinstance(events, int) and bool(events & zmq.POLLIN)

    def close(self) -> None:
        """Close once pending messages are sent, or after two seconds."""
        self._socket.close(linger=_LAST_WORDS_MS)

    def _check_parent(self) -> None:
        # On Linux PR_SET_PDEATHSIG does this at once; elsewhere this check ends an orphan.
        if os.getppid() != self._parent_pid:
            raise EngineGoneError


class _ProgressReporter:
    """Sends LoadProgress at most ten times a second, and always for the last byte."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._next_s = 0.0

    def __call__(self, loaded_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now >= self._next_s or loaded_bytes == total_bytes:
            self._next_s = now + 1 / _MAX_PROGRESS_PER_S
            self._link.send(LoadProgress(loaded_bytes, total_bytes))


def run(place: WorkerPlace, parent_pid: int, keys: ClientKeys | None = None) -> int:
    """Serve until Shutdown, a fault, or the exit of the engine.

    Args:
        place: validated.
        parent_pid: the process that started this one, usually the engine; once it is no longer the parent,
            the worker exits.
        keys: for an engine on another machine.

    Returns:
        The exit code: EXIT_OK, EXIT_CONFIG (the settings do not fit the checkpoint), EXIT_MODEL (the model
        cannot be served) or EXIT_WORKER (a later fault, or the engine is gone).

    Raises:
        ConfigError: the address cannot be used.
    """
    with zmq.Context() as context:
        link = EngineLink(context, place, parent_pid, keys)
        try:
            link.send(WorkerHello(PROTOCOL_VERSION, software_version(), place.rank, os.getpid()))
            return _begin(link, place)
        except EngineGoneError:
            log_event(logger, logging.WARNING, "engine_gone", rank=place.rank)
            return EXIT_WORKER
        finally:
            link.close()


def _begin(link: EngineLink, place: WorkerPlace) -> int:
    try:
        message = to_worker_decoder.decode(link.receive())
        if isinstance(message, Shutdown):
            return EXIT_OK
        if not isinstance(message, Configure):
            raise WorkerError(f"the engine sent {type(message).__name__} before Configure")
        config = WorkerConfig.of(place, message)
    except SplitServeError as error:
        return _fail(link, error, EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_WORKER)
    configure_logging(config.log_level, config.log_format)
    return _serve(link, config)


def _serve(link: EngineLink, config: WorkerConfig) -> int:
    try:
        # Importing torch takes most of the startup time, so the hello is sent first. Collections during
        # the import would find no garbage and cost 0.15 s.
        gc.disable()
        from splitserve.worker.worker import Worker

        worker = Worker(config)
        link.send(worker.load(_ProgressReporter(link)))
    except EngineGoneError:
        raise
    except Exception as error:
        return _fail(link, error, EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_MODEL)
    try:
        return _answer(link, worker)
    except EngineGoneError:
        raise
    except Exception as error:
        return _fail(link, error, EXIT_WORKER)
    finally:
        worker.close()


def _answer(link: EngineLink, worker: Worker) -> int:
    replies = Replies(link.send, link.has_message)
    try:
        return _run(link, worker, replies)
    finally:
        replies.flush()


def _run(link: EngineLink, worker: Worker, replies: Replies) -> int:
    from splitserve.worker.batch.step_pipeline import StepPipeline

    steps = StepPipeline(worker, replies.add)
    while True:
        if not link.has_message():
            steps.settle()
            while worker.prepare_ahead() and not link.has_message():
                pass
        answered = time.perf_counter()
        frame = link.receive()
        wait_s = time.perf_counter() - answered
        message = to_worker_decoder.decode(frame)
        if isinstance(message, SchedulerOutput):
            replies.expect(message)
            steps.run(message, wait_s)
            continue
        steps.settle()
        replies.flush()
        match message:
            case InitKVCache():
                ready = worker.init_kv_cache(message.num_blocks, message.num_host_blocks)
                # Everything allocated so far is permanent: later collections need not scan it.
                gc.freeze()
                gc.enable()
                link.send(ready)
            case Shutdown():
                return EXIT_OK
            case Configure():
                raise WorkerError("the engine sent Configure twice")


def _fail(link: EngineLink, error: Exception, exit_code: int) -> int:
    """Tell the engine why this worker exits; log unexpected errors with their traceback."""
    known = isinstance(error, SplitServeError)
    if not known:
        log_event(logger, logging.ERROR, "worker_failed", error)
    code = error.code if isinstance(error, SplitServeError) else WorkerError.code
    message = str(error) if known else f"{type(error).__name__}: {error}"
    link.send(WorkerFailed(code, message))
    return exit_code

"""The main loop of a worker process: which messages it exchanges with its engine, and in which order.

worker sends         engine sends      then the worker
WorkerHello          Configure         imports torch, loads
LoadProgress...
WorkerReady          InitKVCache       allocates, warms up
KVCacheReady         SchedulerOutput   computes, replies ModelRunnerOutput
MemoryReleased       ReleaseKVCache    frees, until InitKVCache
MemoryNeed           Shutdown          ends; in the place of WorkerReady, with `fit`
WorkerFailed                           ends
                     Shutdown          ends

What a worker does when its engine is gone, once it serves, is in serving.py.
"""

from __future__ import annotations

import gc
import logging
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
from splitserve.engine_core.ipc.codec import to_worker_decoder
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.worker_messages import Configure, LoadProgress, Shutdown, WorkerFailed
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import configure_logging, log_event
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.config import WorkerConfig
from splitserve.worker.engine_link import EngineGoneError, EngineLink
from splitserve.worker.serving import Serving, hello

if TYPE_CHECKING:
    from splitserve.worker.worker import Worker

logger = logging.getLogger(__name__)

_MAX_PROGRESS_PER_S = 10


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
            the worker exits, or waits for another engine.
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
            link.send(hello(place.rank))
            reach("worker.hello_sent")
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
        if config.fit:
            return _say_need(link, worker)
        reach("worker.loading")
        ready = worker.load(_ProgressReporter(link))
        link.send(ready)
        reach("worker.ready")
    except EngineGoneError:
        raise
    except Exception as error:
        return _fail(link, error, EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_MODEL)
    try:
        return Serving(link, config, worker, ready).run()
    except EngineGoneError:
        raise
    except Exception as error:
        return _fail(link, error, EXIT_WORKER)
    finally:
        worker.close()


def _say_need(link: EngineLink, worker: Worker) -> int:
    """Say what the model will take, and end when the engine has heard."""
    link.send(worker.memory_need())
    link.receive()
    worker.close()
    return EXIT_OK


def _fail(link: EngineLink, error: Exception, exit_code: int) -> int:
    """Tell the engine why this worker exits; log unexpected errors with their traceback."""
    known = isinstance(error, SplitServeError)
    if not known:
        log_event(logger, logging.ERROR, "worker_failed", error)
    code = error.code if isinstance(error, SplitServeError) else WorkerError.code
    message = str(error) if known else f"{type(error).__name__}: {error}"
    link.send(WorkerFailed(code, message))
    return exit_code

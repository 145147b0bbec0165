"""How does a loaded worker serve one engine after another?

state      event                               next
serving    InitKVCache, SchedulerOutput        serving: allocates; computes and replies
serving    ReleaseKVCache                      serving: frees, until InitKVCache
serving    Shutdown                            ends
serving    the engine ends                     waiting, if it has a KV cache and is to wait; else ends
waiting    an engine sends Adopt               adopted: says hello
waiting    worker_wait_s are over              ends
adopted    Configure, InitKVCache              adopted: answers with what it has
adopted    SchedulerOutput                     serving
adopted    the engine ends                     waiting

A waiting worker keeps weights, KV cache and graphs. Its batch is empty, and replies that the last engine did
not take are dropped: whatever that engine was not told has not happened for anybody. With one rank the steps
that the last engine still sent are dropped as well; several ranks compute them, since each may have begun one
that needs the others.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import EXIT_OK, WorkerError
from splitserve.engine_core.ipc.addresses import ipc_path
from splitserve.engine_core.ipc.codec import to_worker_decoder
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import (
    Adopt,
    CompileGrammar,
    Configure,
    InitKVCache,
    KVCacheReady,
    LoadAdapter,
    ModelRunnerOutput,
    ReleaseKVCache,
    SchedulerOutput,
    SetLogLevel,
    Shutdown,
    WorkerHello,
    WorkerReady,
    WorkerWaiting,
)
from splitserve.engine_core.kept.folder import remove_folder_of
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import configure_logging, log_event, set_log_level
from splitserve.engine_core.process.version import software_version
from splitserve.worker.batch.replies import Replies
from splitserve.worker.config import WorkerConfig
from splitserve.worker.death_signal import outlive_parent
from splitserve.worker.engine_link import EngineGoneError, EngineLink

if TYPE_CHECKING:
    from splitserve.worker.batch.step_pipeline import StepPipeline
    from splitserve.worker.worker import Worker

logger = logging.getLogger("splitserve.worker.loop")

# While steps follow each other without a pause, the engine is looked for this often.
_CHECK_S = 0.05


def hello(rank: int) -> WorkerHello:
    """Return what a worker says first to every engine."""
    return WorkerHello(PROTOCOL_VERSION, software_version(), rank, os.getpid())


class Serving:
    """A worker from the moment its model is loaded; single-threaded.

    Args:
        link: to the engine.
        config: of the worker.
        worker: loaded.
        ready: what it said of the model.
    """

    def __init__(self, link: EngineLink, config: WorkerConfig, worker: Worker, ready: WorkerReady) -> None:
        self._link = link
        self._place = config.place
        self._num_ranks = config.num_ranks
        self._wait_s = config.worker_wait_s
        self._worker = worker
        self._ready = ready
        self._cache: tuple[InitKVCache, KVCacheReady] | None = None
        self._is_adopted = False
        self._num_steps = 0
        self._checked_s = 0.0

    def run(self) -> int:
        """Serve until an engine ends the worker, or none comes any more; return the exit code.

        Raises:
            EngineGoneError: the engine is gone, and there is nothing to wait for, or nobody came.
            WorkerError, ProtocolError, RuntimeError: as ModelRunner.begin.
        """
        while True:
            try:
                return self._serve()
            except EngineGoneError:
                if self._wait_s == 0:
                    raise
                if self._cache is None:
                    self._remove_folder()
                    raise
            self._await_engine()

    def _serve(self) -> int:
        # Only now: it imports torch.
        from splitserve.worker.batch.step_pipeline import StepPipeline

        replies = Replies(self._reply, self._link.has_message)
        steps = StepPipeline(self._worker, replies.add)
        try:
            return self._run(steps, replies)
        except EngineGoneError:
            replies.drop()
            # A step that is still on the device uses the batch.
            steps.finish()
            raise
        finally:
            replies.flush()

    def _run(self, steps: StepPipeline, replies: Replies) -> int:
        link, worker = self._link, self._worker
        while True:
            self._tell_done()
            if not link.has_message():
                steps.settle()
                while worker.prepare_ahead() and not link.has_message():
                    pass
                while self._background and not link.has_message():
                    link.await_any(*self._background)
                    self._tell_done()
            answered = time.perf_counter()
            if answered - self._checked_s > _CHECK_S and self._num_ranks == 1:
                self._checked_s = answered
                link.check_engine()
            frame = link.receive()
            wait_s = time.perf_counter() - answered
            message = to_worker_decoder.decode(frame)
            if isinstance(message, SchedulerOutput):
                reach("worker.step_received")
                self._is_adopted = False
                self._num_steps += 1
                replies.expect(message)
                steps.run(message, wait_s)
                continue
            steps.settle()
            replies.flush()
            match message:
                case InitKVCache():
                    self._init_kv_cache(message)
                case ReleaseKVCache():
                    self._release_kv_cache()
                case CompileGrammar():
                    worker.grammars.ask(message)
                case LoadAdapter():
                    worker.adapters.ask(message)
                case SetLogLevel():
                    set_log_level(message.level)
                case Shutdown():
                    return EXIT_OK
                case Configure() if self._is_adopted:
                    self._wait_s = message.worker_wait_s
                    configure_logging(message.settings.log_level, message.settings.log_format)
                    link.send(self._ready)
                case Configure() | Adopt():
                    raise WorkerError(f"the engine sent {type(message).__name__} to a worker that serves")

    @property
    def _background(self) -> list[int]:
        """What becomes readable when work beside the steps is done."""
        works = (self._worker.grammars, self._worker.adapters)
        return [work.done_fd for work in works if work.is_busy]

    def _tell_done(self) -> None:
        """Tell what was done beside the steps."""
        for answer in self._worker.grammars.take_done():
            self._link.send(answer)
        for loaded in self._worker.adapters.take_done():
            self._link.send(loaded)

    def _reply(self, output: ModelRunnerOutput) -> None:
        reach("worker.step_computed")
        self._link.send(output)
        reach("worker.output_sent")

    def _init_kv_cache(self, wanted: InitKVCache) -> None:
        if self._is_adopted:
            if self._cache is None or self._cache[0].num_host_blocks != wanted.num_host_blocks:
                raise WorkerError(f"the engine wants another KV cache than it takes over: {wanted}")
            self._link.send(self._cache[1])
            reach("worker.attached")
            return
        ready = self._worker.init_kv_cache(wanted.num_blocks, wanted.num_host_blocks)
        self._cache = wanted, ready
        # Everything allocated so far is permanent: later collections need not scan it.
        gc.freeze()
        gc.enable()
        if self._wait_s > 0:
            outlive_parent()
        self._link.send(ready)

    def _release_kv_cache(self) -> None:
        # It is of no use to a successor, and the engine asks for everything anew.
        self._cache, self._is_adopted = None, False
        self._worker.grammars.forget_asks()
        self._worker.adapters.forget_asks()
        self._link.send(self._worker.release_kv_cache())

    def _await_engine(self) -> None:
        """Wait for a successor of the engine and greet it.

        Raises:
            EngineGoneError: none came.
        """
        rank, pid = self._place.rank, os.getpid()
        log_event(logger, logging.WARNING, "engine_gone", rank=rank, waits_s=self._wait_s)
        self._worker.forget_batch()
        self._worker.grammars.forget_asks()
        self._worker.adapters.forget_asks()
        reach("worker.waiting_for_engine")
        if not self._link.find_successor(WorkerWaiting(rank, pid, self._num_steps), self._wait_s):
            self._remove_folder()
            raise EngineGoneError
        self._is_adopted = True
        log_event(logger, logging.INFO, "engine_found", rank=rank)
        self._link.send(hello(rank))

    def _remove_folder(self) -> None:
        """Leave nothing where a successor of the engine would find this worker."""
        remove_folder_of(os.getpid(), os.path.dirname(ipc_path(self._place.connect)))

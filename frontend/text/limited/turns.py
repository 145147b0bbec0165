"""Whose turn is it on a process, and what follows when it is lost? A thread has it do one job at a time.

made           nothing runs yet; start() starts the process, otherwise the first job does
submit()       in order, one at a time
process lost   a new one; the work it was lost with is tried once more, then given up
close()        process killed, what waits is cancelled; so it is when this object is dropped, when the
               interpreter ends, and, by the kernel, when this process dies
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from splitserve.engine_core.errors import EngineUnavailableError, ModelLoadError, OverloadedError
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.text.limited.process import ProcessEndedError, ProcessTimeoutError

logger = logging.getLogger(__name__)

# As many as a frontend has open requests, and an LLM prompts in flight.
MAX_WAITING = 4096


class Killable(Protocol):
    """A process as far as its turns are concerned."""

    @property
    def pid(self) -> int:
        """Process id."""

    def end(self) -> None:
        """Make it end; for any thread."""

    def kill(self) -> None:
        """End it and release what it holds."""


P = TypeVar("P", bound=Killable)
T = TypeVar("T")


class Turns(Generic[P]):
    """What the thread does; nothing of it refers to ProcessQueue, so that dropping that ends this."""

    def __init__(self, make: Callable[[], P], name: str) -> None:
        """Start nothing yet.

        Args:
            make: starts a process.
            name: of what it is for, in words.
        """
        self.process: P | None = None
        self.thread_id = 0
        self._make = make
        self.name = name
        self._closed = False

    def start(self) -> P:
        """Start a process. Raises what the function that makes it does."""
        self.thread_id = threading.get_ident()
        process = self.process = self._make()
        if self._closed:
            # stop() saw none yet.
            self.drop()
            raise ProcessEndedError("it is closed")
        return process

    def run(self, use: Callable[[P], T]) -> T:
        """Have the process do something; called by the thread, in a job.

        Raises:
            ProcessTimeoutError: it took too long; the process is replaced.
            ProcessEndedError: it ended twice with this.
            EngineUnavailableError: there can be no process.
        """
        try:
            return self._run(use)
        except ProcessEndedError:
            # It may have been killed for what is not this request's fault, such as memory of the machine.
            return self._run(use)

    def stop(self) -> None:
        """End what is being done; for any thread."""
        self._closed = True
        process = self.process
        if process is not None:
            process.end()

    def drop(self) -> None:
        """Kill the process, if there is one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()

    def _run(self, use: Callable[[P], T]) -> T:
        process = self.process or self._restart()
        try:
            return use(process)
        except (ProcessEndedError, ProcessTimeoutError) as error:
            self.drop()
            if not self._closed:
                log_event(logger, logging.WARNING, f"replacing the {self.name} process", reason=str(error))
            raise

    def _restart(self) -> P:
        if self._closed:
            raise EngineUnavailableError(f"the {self.name} process is closed")
        try:
            return self.start()
        except (ProcessEndedError, ModelLoadError) as error:
            raise EngineUnavailableError(f"the {self.name} process failed: {error}") from None


class ProcessQueue(Generic[P]):
    """One process, its thread, and the jobs that wait for them; for any thread."""

    def __init__(self, make: Callable[[], P], name: str) -> None:
        """Start nothing yet; the arguments are those of Turns."""
        self._turns = Turns(make, name)
        # The process is a child of this thread, which lives as long as this object.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name.replace(" ", "-"))
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._finalizer = weakref.finalize(self, _close, self._executor, self._turns, os.getpid())

    @property
    def pid(self) -> int:
        """Id of the process, 0 if there is none now."""
        process = self._turns.process
        return process.pid if process else 0

    def start(self) -> None:
        """Start the process and wait for it; closes this if that fails.

        Raises:
            ProcessEndedError: it cannot be started.
            ModelLoadError: or whatever else the function that makes it raises.
        """
        try:
            self._executor.submit(self._turns.start).result()
        except BaseException:
            self.close()
            raise

    def submit(self, job: Callable[[Turns[P]], T]) -> Future[T]:
        """Run a job when it is its turn; the future has what it returns or raises.

        Args:
            job: called in another thread.

        Raises:
            OverloadedError: 4096 jobs wait.
            EngineUnavailableError: this is closed.
        """
        name = self._turns.name
        with self._lock:
            if self._num_waiting >= MAX_WAITING:
                raise OverloadedError(f"{MAX_WAITING} requests are already waiting for the {name} process")
            self._num_waiting += 1
        try:
            future = self._executor.submit(job, self._turns)
        except RuntimeError:
            self._on_done(None)
            raise EngineUnavailableError(f"the {name} process is closed") from None
        future.add_done_callback(self._on_done)
        return future

    def close(self) -> None:
        """Kill the process and cancel what waits; safe to call twice."""
        self._finalizer()

    def _on_done(self, _: Future[T] | None) -> None:
        with self._lock:
            self._num_waiting -= 1


def _close(executor: ThreadPoolExecutor, turns: Turns[P], owner_pid: int) -> None:
    # A forked child must not end its parent's process.
    if os.getpid() != owner_pid:
        return
    turns.stop()
    # The thread may hold the last reference, and cannot wait for itself.
    executor.shutdown(wait=threading.get_ident() != turns.thread_id, cancel_futures=True)
    turns.drop()

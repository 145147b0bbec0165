"""Renders the chat templates of one checkpoint: a thread, its process, and the requests that wait for them.

Templates come with a model's files, and what one expression of theirs may cost has no bound (`10**10**9`). So
they run in a process of their own (template_child.py). A rendering that takes too long or too much
memory is refused and the process replaced; who waits behind it has its turn on the new one.

    made           process started, templates compiled
    submit()       in order, one at a time
    process lost   a new one; the rendering it was lost with is tried once more, then refused
    close()        process killed, what waits is cancelled; so it is when this object is dropped, when the
                   interpreter ends, and, by the kernel, when this process dies
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
)
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.text.chat.template_process import (
    ProcessEndedError,
    RenderLimits,
    TemplateProcess,
    TemplateTimeoutError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Render = Callable[[str, Mapping[str, object], int], str]

MAX_TEMPLATE_BYTES = 2**20
# As many as a frontend has open requests, and an LLM prompts in flight.
MAX_WAITING = 4096


class TemplateRenderer:
    """Renders for any thread."""

    def __init__(self, sources: Mapping[str, str], limits: RenderLimits | None = None) -> None:
        """Start the process and compile templates, given by name.

        Raises:
            ModelLoadError: one is too long or no jinja2 template, or the process cannot be started.
        """
        for name, source in sources.items():
            if len(source) > MAX_TEMPLATE_BYTES:
                raise ModelLoadError(
                    f"the chat template {name[:100]!r} is larger than the limit of {MAX_TEMPLATE_BYTES} bytes"
                )
        self._turns = _Turns(dict(sources), limits or RenderLimits())
        # The process is a child of this thread, which lives as long as this object.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chat-template")
        self._lock = threading.Lock()
        self._num_waiting = 0
        self._finalizer = weakref.finalize(self, _close, self._executor, self._turns, os.getpid())
        try:
            self._executor.submit(self._turns.start).result()
        except ProcessEndedError as error:
            self.close()
            raise ModelLoadError(f"the chat template process failed: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Id of the process, 0 if there is none now."""
        process = self._turns.process
        return process.pid if process else 0

    def submit(self, job: Callable[[Render], T]) -> Future[T]:
        """Run a job that renders, when it is its turn; the future has what it returns or raises.

        Args:
            job: called in another thread with a function that takes the template's name, the variables and
                the most characters of output. That raises as TemplateProcess.render() does, but if the
                process ended twice an InvalidRequestError, and if there can be none an
                EngineUnavailableError.

        Raises:
            OverloadedError: 4096 jobs wait.
            EngineUnavailableError: this is closed.
        """
        with self._lock:
            if self._num_waiting >= MAX_WAITING:
                raise OverloadedError(
                    f"{MAX_WAITING} conversations are already waiting for the chat template"
                )
            self._num_waiting += 1
        try:
            future = self._executor.submit(job, self._turns.render)
        except RuntimeError:
            self._on_done(None)
            raise EngineUnavailableError("the model's chat template is closed") from None
        future.add_done_callback(self._on_done)
        return future

    def close(self) -> None:
        """Kill the process and cancel what waits; safe to call twice."""
        self._finalizer()

    def _on_done(self, _: Future[T] | None) -> None:
        with self._lock:
            self._num_waiting -= 1


class _Turns:
    """What the thread does; nothing of it refers to the renderer, so that dropping that ends this."""

    def __init__(self, sources: dict[str, str], limits: RenderLimits) -> None:
        self.process: TemplateProcess | None = None
        self.thread_id = 0
        self._sources = sources
        self._limits = limits
        self._closed = False

    def start(self) -> TemplateProcess:
        self.thread_id = threading.get_ident()
        process = self.process = TemplateProcess(self._sources, self._limits)
        if self._closed:
            # close() saw none yet.
            self.drop()
            raise ProcessEndedError("it is closed")
        return process

    def render(self, name: str, variables: Mapping[str, object], max_chars: int) -> str:
        try:
            return self._render(name, variables, max_chars)
        except ProcessEndedError:
            # It may have been killed for what is not this request's fault, such as memory of the machine.
            pass
        try:
            return self._render(name, variables, max_chars)
        except ProcessEndedError as error:
            raise InvalidRequestError(
                f"the chat template crashed its renderer twice: {error}", "messages"
            ) from None

    def stop(self) -> None:
        """End what is being rendered; for any thread."""
        self._closed = True
        process = self.process
        if process is not None:
            process.end()

    def drop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()

    def _render(self, name: str, variables: Mapping[str, object], max_chars: int) -> str:
        process = self.process or self._restart()
        try:
            return process.render(name, variables, max_chars)
        except (ProcessEndedError, TemplateTimeoutError) as error:
            self.drop()
            if not self._closed:
                log_event(logger, logging.WARNING, "replacing the chat template process", reason=str(error))
            raise

    def _restart(self) -> TemplateProcess:
        if self._closed:
            raise EngineUnavailableError("the model's chat template is closed")
        try:
            return self.start()
        except (ProcessEndedError, ModelLoadError) as error:
            raise EngineUnavailableError(f"the chat template process failed: {error}") from None


def _close(executor: ThreadPoolExecutor, turns: _Turns, owner_pid: int) -> None:
    # A forked child must not end its parent's process.
    if os.getpid() != owner_pid:
        return
    turns.stop()
    # The thread may hold the last reference, and cannot wait for itself.
    executor.shutdown(wait=threading.get_ident() != turns.thread_id, cancel_futures=True)
    turns.drop()

"""The open streams of an AsyncLLM: run on the engine's thread, read on any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.offline.job_runner import JobRunner
from splitserve.frontend.offline.jobs import ChatJob, PromptJob
from splitserve.frontend.offline.output_slot import OutputSlot
from splitserve.frontend.offline.outputs import RequestOutput
from splitserve.frontend.offline.runner import OfflineRunner


class _Aborted(Exception):
    """Ends a stream for its reader."""


class OpenStreams:
    """Runs streams by request id; its methods may be called on several threads.

    As many run at once as fill the engine's batch twice; the others wait here.

    Args:
        runner: of the engine.
        jobs: makes outputs, on the runner's event loop.
    """

    def __init__(self, runner: OfflineRunner, jobs: JobRunner) -> None:
        self._runner = runner
        self._jobs = jobs
        self._places = asyncio.Semaphore(jobs.max_in_flight)
        self._lock = threading.Lock()
        self._slots: dict[str, OutputSlot] = {}

    async def stream(self, job: PromptJob | ChatJob, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        """Run a job, yielding its output as it grows.

        Raises:
            InvalidRequestError: a request of this id is open, or the job is wrong.
            SplitServeError: the engine failed.
        """
        slot = OutputSlot()
        with self._lock:
            if request_id in self._slots:
                raise InvalidRequestError(f"request_id: {request_id!r} is open already", "request_id")
            self._slots[request_id] = slot
        running: concurrent.futures.Future[None] | None = None
        output: RequestOutput | None = None
        try:
            running = self._runner.submit(self._run(job, slot))
            while (taken := await slot.take()) is not None:
                output = replace(taken, request_id=request_id)
                yield output
        except _Aborted:
            if output is not None:
                yield _aborted(output)
        finally:
            if running is not None:
                running.cancel()
            with self._lock:
                del self._slots[request_id]

    def abort(self, request_id: str) -> None:
        """End a stream, if there is one of this id."""
        with self._lock:
            slot = self._slots.get(request_id)
        if slot is not None:
            slot.end(_Aborted())

    def end_all(self, error: Exception) -> None:
        """End all streams with an error."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            slot.end(error)

    async def _run(self, job: PromptJob | ChatJob, slot: OutputSlot) -> None:
        try:
            stream = self._jobs.stream(job, lambda _: None, at_once=True)
            async with self._places, aclosing(stream) as outputs:
                async for output in outputs:
                    slot.put(output)
        except Exception as error:
            slot.end(error)
        else:
            slot.end()


def _aborted(output: RequestOutput) -> RequestOutput:
    """Return an output that ends here."""
    completions = [replace(each, finish_reason=each.finish_reason or "abort") for each in output.outputs]
    return replace(output, outputs=completions, finished=True)

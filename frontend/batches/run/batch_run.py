"""One batch in the hands of its owner.

status          what is done                                     then
validating      every line is read and checked                   in_progress, or failed
in_progress     lines without an answer are asked, and written   finalizing, once all have one; or because
                                                                 it is to be cancelled, or its window is over
finalizing      the answers become files                         completed, cancelled, expired or failed

A process that claims a batch goes on from the status that it finds: what is written is not done again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from splitserve.engine_core.batch_lines.answer_line import AnswerError, answer_line, unanswered_line
from splitserve.engine_core.batch_lines.request_line import read_request
from splitserve.engine_core.batch_lines.retries import wait_s
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.batches.run.answer_log import AnswerLog
from splitserve.frontend.batches.run.line_call import LineCalls
from splitserve.frontend.batches.run.line_source import Line, read_lines
from splitserve.frontend.batches.run.outputs import write_outputs
from splitserve.frontend.batches.run.pace import Pace
from splitserve.frontend.batches.run.validation import Validation
from splitserve.frontend.batches.schema.batches import BatchFault, BatchFaults, RequestCounts, Status
from splitserve.frontend.batches.store.batches import Answered, BatchRow
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key
from splitserve.frontend.response_store.off_loop import off_loop

logger = logging.getLogger("frontend")

# Of answers of 500 and above, which may be the server's fault or the request's.
_MAX_TRIES = 3
_EXPIRED = AnswerError(
    "batch_expired", "This request could not be executed before the completion window expired."
)


class Stop(enum.Enum):
    """Why no further line is asked."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FULL = "file_store_full"
    NO_INPUT = "input_file_missing"
    LOST = "lost"
    LEAVING = "leaving"


_FAULTS = {
    Stop.FULL: "the answers do not fit into the file store (--file-store-bytes)",
    Stop.NO_INPUT: "the input file was deleted or has expired",
}


_ENDS: dict[Stop | None, Status] = {
    None: "completed",
    Stop.CANCELLED: "cancelled",
    Stop.EXPIRED: "expired",
}


class BatchLimits(NamedTuple):
    """What a batch may be.

    Attributes:
        max_lines: requests.
        max_line_bytes: of one.
        ttl_s: how long its files live, unless it says otherwise.
    """

    max_lines: int
    max_line_bytes: int
    ttl_s: int


class BatchRun:
    """The work on one batch; belongs to the event loop."""

    def __init__(
        self, store: FileStore, row: BatchRow, calls: LineCalls, pace: Pace, limits: BatchLimits
    ) -> None:
        """Prepare.

        Args:
            store: that it is kept in.
            row: the batch as it was claimed.
            calls: answer its lines.
            pace: of all batches of this process.
            limits: of a batch.
        """
        self.key = row.key
        self._store = store
        self._owner = row.owner
        self._kept = row.kept
        self._calls = calls
        self._pace = pace
        self._limits = limits
        self._stop: Stop | None = None
        self._stopped = asyncio.Event()
        self._rng = random.Random()
        self._log = AnswerLog(
            store,
            row.key,
            row.owner,
            on_lost=partial(self.stop, Stop.LOST),
            on_full=partial(self.stop, Stop.FULL),
        )
        if row.cancelling_s:
            self.stop(Stop.CANCELLED)

    def stop(self, reason: Stop) -> None:
        """End the work; only the first reason counts, but for the loss of the batch and of the process."""
        if self._stop is None or reason in (Stop.LOST, Stop.LEAVING):
            self._stop = reason
            self._stopped.set()

    async def run(self) -> None:
        """Work until the batch has ended, or is not this process's any more.

        Raises:
            FileStoreUnavailableError: the store; another claim goes on later.
        """
        if self._kept.batch.status == "validating" and self._stop is None:
            await self._validate()
        if self._kept.batch.status == "in_progress":
            await self._answer_lines()
        if self._stop in (Stop.LOST, Stop.LEAVING) or self._kept.batch.status == "failed":
            return
        await self._finalize()

    async def _validate(self) -> None:
        batch, limits = self._kept.batch, self._limits
        validation = Validation(batch.endpoint, limits.max_lines, limits.max_line_bytes)
        async for lines in self._lines():
            num_bytes = sum(len(line.data) for line in lines)
            await off_loop(num_bytes, partial(validation.read, lines))
            if validation.is_hopeless or self._stop is not None:
                break
        if self._stop is not None:
            return
        validation.end()
        if await self._store.files.get(self._input) is None:
            validation.faults = [BatchFault(code=Stop.NO_INPUT.value, message=_FAULTS[Stop.NO_INPUT])]
        if validation.faults:
            self._set("failed", errors=BatchFaults(data=validation.faults))
            await self._end([])
            return
        self._set("in_progress", request_counts=RequestCounts(total=validation.num_lines))
        await self._save()

    async def _answer_lines(self) -> None:
        """Ask for the lines without an answer, until all have one or something stops that."""
        left_s = self._kept.batch.expires_at - self._store.clock()
        expiry = asyncio.get_running_loop().call_later(left_s, self.stop, Stop.EXPIRED)
        writing = asyncio.create_task(self._log.run(), name="batch-answers")
        stopping = asyncio.create_task(self._stopped.wait(), name="batch-stop")
        asking = asyncio.create_task(self._ask_all(), name="batch-lines")
        try:
            await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
            await asyncio.wait((asking,))
            writing.cancel()
            await asyncio.wait((writing,))
            await self._log.flush()
            if not asking.cancelled():
                asking.result()
                if self._stop in (Stop.FULL, Stop.EXPIRED):
                    # Too late to matter: all have an answer.
                    self._stop = None
        finally:
            expiry.cancel()
            for task in (asking, stopping, writing):
                task.cancel()

    async def _ask_all(self) -> None:
        done = await self._store.batches.answered(self.key)
        num_lines = 0
        async with asyncio.TaskGroup() as tasks:
            async for lines in self._lines():
                for line in lines:
                    num_lines += 1
                    if line.number not in done:
                        await self._pace.enter()
                        task = tasks.create_task(self._ask(line))
                        # Also if it never begins.
                        task.add_done_callback(lambda _: self._pace.leave())
        if num_lines < self._kept.batch.request_counts.total:
            self.stop(Stop.NO_INPUT)

    async def _ask(self, line: Line) -> None:
        request = read_request(line.data)
        num_tries = 0
        while True:
            answer = await self._calls.answer(request, self.key.tenant)
            num_tries += 1
            if answer.status < 500 and not answer.may_pass:
                break
            if not answer.may_pass and num_tries >= _MAX_TRIES:
                break
            # It keeps its place meanwhile: what another line would hear now is the same.
            await asyncio.sleep(wait_s(num_tries, answer.retry_after_s, self._rng))
        told = answer_line(request.custom_id, answer.status, answer.body).encoded()
        self._log.add(Answered(line.number, answer.status >= 400, told))

    async def _finalize(self) -> None:
        if self._kept.batch.status != "finalizing":
            if self._stop is Stop.EXPIRED:
                await self._expire_lines()
            self._kept = msgspec.structs.replace(self._kept, end=_ENDS.get(self._stop, "failed"))
            self._set("finalizing", errors=_faults(self._stop))
            await self._save()
        if self._stop is Stop.LOST:
            return
        output, error = await write_outputs(self._store.files, self._store.batches, self.key)
        self._set(
            self._kept.end,
            output_file_id=output and output.id,
            error_file_id=error and error.id,
        )
        await self._end([each for each in (output, error) if each is not None])

    async def _expire_lines(self) -> None:
        """Give every line that has no answer the one that its time is over."""
        done = await self._store.batches.answered(self.key)
        async for lines in self._lines():
            for line in lines:
                if line.number not in done:
                    told = unanswered_line(read_request(line.data).custom_id, _EXPIRED)
                    self._log.add(Answered(line.number, True, told.encoded()))
            await self._log.flush()

    @property
    def _input(self) -> Key:
        return Key(self.key.tenant, self._kept.batch.input_file_id)

    def _lines(self) -> AsyncGenerator[list[Line], None]:
        return read_lines(self._store.files, self._input, self._limits.max_line_bytes)

    def _set(self, status: Status, **changes: object) -> None:
        """Change the batch, with the time of its new status."""
        changes[f"{status}_at"] = int(self._store.clock())
        batch = msgspec.structs.replace(self._kept.batch, status=status, **changes)
        self._kept = msgspec.structs.replace(self._kept, batch=batch)

    async def _save(self) -> None:
        if not await self._store.batches.save(self.key, self._owner, self._kept):
            self.stop(Stop.LOST)

    async def _end(self, files: Sequence[Key]) -> None:
        ttl_s = self._kept.output_ttl_s or self._limits.ttl_s
        if await self._store.batches.end(self.key, self._owner, self._kept, files, ttl_s):
            batch = self._kept.batch
            log_event(logger, logging.INFO, "batch_ended", batch_id=batch.id, status=batch.status)
        else:
            self.stop(Stop.LOST)


def _faults(stop: Stop | None) -> BatchFaults | None:
    if stop is None or stop not in _FAULTS:
        return None
    return BatchFaults(data=[BatchFault(code=stop.value, message=_FAULTS[stop])])

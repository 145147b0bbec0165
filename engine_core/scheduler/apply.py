"""What follows from a worker's output? Tokens to emit, prefixes to index, requests to end."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import DeviceMemoryError, WorkerError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.wire import Pooled, TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, RowDrafts, RowError
from splitserve.engine_core.request import EndedRequest, FrontendId, Request
from splitserve.engine_core.scheduler.counted_drafts import NO_DRAFTS, StepDrafts, count_drafts
from splitserve.engine_core.scheduler.output import Recipients, TokenColumns
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.pacing.pipeline_drafts import PipelineDrafts
from splitserve.engine_core.scheduler.running import IntColumn
from splitserve.engine_core.scheduler.sampled_runs import SampledRuns, read_runs
from splitserve.engine_core.scheduler.scheduler import Scheduler


class AppliedStep(NamedTuple):
    """The results of one applied step; ended requests have left their rows already."""

    step: PlannedStep
    tokens: list[TokenColumns]
    ended: list[EndedRequest]
    logprobs: list[tuple[FrontendId, TokenLogprobs]]
    prompt_logprobs: list[tuple[FrontendId, TokenLogprobs]]
    pooled: list[tuple[FrontendId, Pooled]]
    drafts: StepDrafts
    ran_out_of_memory: bool


class _Sampled(NamedTuple):
    """Rows that sampled and are still wanted, their positions and tokens; all [n]."""

    rows: IntColumn
    positions: IntColumn
    token_ids: npt.NDArray[np.int32]

    def select(self, which: npt.NDArray[np.bool_]) -> _Sampled:
        return _Sampled(self.rows[which], self.positions[which], self.token_ids[which])


class _Ending(NamedTuple):
    """A row whose request ends, and the token that ended it, if one did."""

    row: int
    token_id: int | None


class StepApplier:
    """Applies outputs in the order their steps were planned; used by the engine's thread only."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._in_flight = scheduler.in_flight
        self._retries = scheduler.memory_retries
        self._running = scheduler.running
        self._drafts = scheduler.drafts
        self._stops = scheduler.stops
        self._kv = scheduler.kv
        self._indexer = scheduler.kv.indexer
        self._recipients = Recipients(scheduler.running, np.zeros(0, np.int64))

    def apply(self, output: ModelRunnerOutput) -> AppliedStep:
        """Advance every row of the step.

        Rows whose request left since the step was planned are skipped: their first_step is later or never.

        Raises:
            WorkerError: the output does not answer the oldest step in flight, or breaks the protocol.
        """
        planned = self._oldest_step(output)
        # Whatever may be wrong is found before anything changes: the step is still in flight then.
        sampled = read_runs(output, planned, self._running, self._kv.capacity, self._stops)
        if output.next_drafts is not None:
            self._keep_drafts(output.step, sampled.rows, output.next_drafts)
        if output.prompt_logprobs or output.pooled:
            self._check_keys(output)
        self._in_flight.popleft()
        # Every step passes here, and hardly one has errors, prompts' logprobs, vectors or rows that end.
        ended = self._end_failed_rows(output, planned) if output.errors else []
        ran_out_of_memory = self._take_back(output, planned, ended)
        if sampled.rows is not self._running.order:  # otherwise no row came or went since it was planned
            sampled = sampled.alive(self._running, planned.step)
        prompt_logprobs = self._prompt_logprobs(output, planned) if output.prompt_logprobs else []
        pooled = self._pooled(output, planned) if output.pooled else []
        known = self._running.num_known_tokens[sampled.rows]
        if sampled.lengths is None:
            one_each, finishing = self._emit(_Sampled(sampled.rows, known, sampled.token_ids))
            emitted = [one_each]
            tokens = self._told(one_each)
        else:
            emitted, finishing = self._emit_runs(sampled)
            tokens = [column for some in emitted for column in self._told(some)]
        if self._drafts is not None:
            self._drafts.rest(output.step, output.draft_rest)
        drafts = NO_DRAFTS
        if planned.max_drafts:
            drafts = count_drafts(self._running, (planned, *self._in_flight), sampled, known)
        self._index_full_blocks(planned)
        logprobs = self._logprobs(output, emitted) if output.logprobs else []
        if finishing:
            ended += self._finish(finishing)
        return AppliedStep(
            planned, tokens, ended, logprobs, prompt_logprobs, pooled, drafts, ran_out_of_memory
        )

    def _keep_drafts(self, step: int, rows: IntColumn, drafts: RowDrafts) -> None:
        if not isinstance(self._drafts, PipelineDrafts):
            raise WorkerError(f"output of step {step} has drafts, which nobody asked for")
        self._drafts.keep(step, rows, drafts, self._stops)

    def _oldest_step(self, output: ModelRunnerOutput) -> PlannedStep:
        in_flight = self._in_flight
        if not in_flight or in_flight[0].step != output.step:
            expected = in_flight[0].step if in_flight else "none"
            raise WorkerError(f"output of step {output.step} arrived, expected step {expected}")
        return in_flight[0]

    def _check_keys(self, output: ModelRunnerOutput) -> None:
        keys = [entry.key for entry in output.prompt_logprobs] + [entry.key for entry in output.pooled]
        for row in keys:
            if not 0 <= row < len(self._running.requests):
                raise WorkerError(f"output of step {output.step} names row {row}, which does not exist")

    def _end_failed_rows(self, output: ModelRunnerOutput, planned: PlannedStep) -> list[EndedRequest]:
        ended: list[EndedRequest] = []
        for error in output.errors:
            if error.code != DeviceMemoryError.code:
                self._end_failed_row(error, planned, ended)
        return ended

    def _end_failed_row(self, error: RowError, planned: PlannedStep, ended: list[EndedRequest]) -> None:
        request = self._request_in(error.row, planned.step)
        if request is not None:
            if error.status >= 500:
                self._kv.distrust(error.row)
            self._scheduler.remove(request)
            ended.append(
                EndedRequest(request, FinishReason.ERROR, None, error.code, error.message, error.status)
            )

    def _take_back(self, output: ModelRunnerOutput, planned: PlannedStep, ended: list[EndedRequest]) -> bool:
        """Let the rows of a step that ran out of memory enter again, or end those taken back too often.

        A step in flight behind this one names a row that was taken back again; it has no request then.

        Returns:
            Whether the step ran out of memory, so that its time means nothing.
        """
        errors = output.errors
        # Check for an empty list before searching it, as every step passes here.
        short = errors and [error for error in errors if error.code == DeviceMemoryError.code]
        if not short:
            self._retries.step_went_well(planned.rows)
            return False
        # A worker may have found two reasons for one row.
        short_rows = dict.fromkeys(error.row for error in short)
        rows = [row for row in short_rows if self._request_in(row, planned.step) is not None]
        num_tokens = int(unpack_int32(planned.packed_num_tokens).sum())
        if rows:
            for request in self._scheduler.take_back(rows, num_tokens):
                self._scheduler.remove(request)
                ended.append(self._out_of_memory(request, num_tokens))
        return True

    def _out_of_memory(self, request: Request, num_tokens: int) -> EndedRequest:
        max_attempts = self._retries.max_attempts
        message = (
            f"{max_attempts} steps of this request ran out of memory without a new "
            f"token in between, the last one with {num_tokens} tokens"
        )
        code, status = DeviceMemoryError.code, DeviceMemoryError.status
        return EndedRequest(request, FinishReason.ERROR, None, code, message, status)

    def _index_full_blocks(self, planned: PlannedStep) -> None:
        # Without prefix caching, and for free rows, next_hash_at lies beyond every count.
        indexer, running = self._indexer, self._running
        full = (planned.num_computed_tokens >= indexer.next_hash_at[planned.rows]).nonzero()[0]
        if len(full) == 0:
            return
        if planned.rows is not running.order:
            full = full[running.first_step[planned.rows[full]] <= planned.step]
        rows = planned.rows[full]
        indexer.index_full_blocks(rows, running.requests_at(rows), planned.num_computed_tokens[full])

    def _emit_runs(self, sampled: SampledRuns) -> tuple[list[_Sampled], list[_Ending]]:
        """Append runs to their rows, each up to the token that ends its request.

        Returns:
            What is emitted, the first token of every run before any second one, and the rows that end.
        """
        emitted: list[_Sampled] = []
        finishing: list[_Ending] = []
        for rows, token_ids in sampled.columns():
            some = _Sampled(rows, self._running.num_known_tokens[rows], token_ids)
            if finishing:
                some = some.select(~np.isin(rows, [ending.row for ending in finishing]))
            some, ending = self._emit(some)
            emitted.append(some)
            finishing += ending
        return emitted, finishing

    def _emit(self, sampled: _Sampled) -> tuple[_Sampled, list[_Ending]]:
        """Append one token to each row; returns what is emitted, and the rows that end."""
        running = self._running
        rows, positions, token_ids = sampled
        stops = self._stops.matches(running, rows, positions, token_ids)
        full = (positions >= running.max_num_computed_tokens[rows]).nonzero()[0]
        if self._stops.detects_repetition:
            full = np.union1d(full, self._stops.repeating(running, rows, token_ids))
        if len(stops) == 0 and len(full) == 0:
            running.append_tokens(rows, positions, token_ids)
            return sampled, []
        # A row without room (max_tokens = 0) only wanted its prompt computed: its sample is dropped.
        has_room = positions < running.max_num_tokens[rows]
        stopped = set(stops[has_room[stops]].tolist())
        finishing = [
            _Ending(int(rows[i]), int(token_ids[i]) if i in stopped else None)
            for i in sorted(stopped.union(full.tolist()))
        ]
        emitted = sampled if has_room.all() else sampled.select(has_room)
        running.append_tokens(*emitted)
        return emitted, finishing

    def _told(self, emitted: _Sampled) -> list[TokenColumns]:
        return self._recipients_of(emitted.rows).split(emitted.positions, emitted.token_ids)

    def _recipients_of(self, rows: IntColumn) -> Recipients:
        """Return who is told about these rows; the same object as long as no row comes or goes."""
        running = self._running
        if rows is not running.order:
            return Recipients(running, rows)
        if self._recipients.rows is not rows:
            self._recipients = Recipients(running, rows)
        return self._recipients

    def _finish(self, finishing: list[_Ending]) -> list[EndedRequest]:
        ended = []
        for row, token_id in finishing:
            request = self._running.request_at(row)
            self._scheduler.remove(request)
            if token_id is None:
                loops = request.repetition is not None and request.repetition.found
                ended.append(EndedRequest(request, FinishReason.REPETITION if loops else FinishReason.LENGTH))
            else:
                stop_token_id = self._stops.stop_token_id(request, token_id)
                ended.append(EndedRequest(request, FinishReason.STOP, stop_token_id))
        return ended

    def _logprobs(
        self, output: ModelRunnerOutput, emitted: list[_Sampled]
    ) -> list[tuple[FrontendId, TokenLogprobs]]:
        """Re-key logprobs from rows to handles; the index is the engine's own count."""
        positions_of: dict[int, list[int]] = {}
        for some in reversed(emitted):
            for row, position in zip(some.rows.tolist(), some.positions.tolist(), strict=True):
                positions_of.setdefault(row, []).append(position)
        renamed = []
        for logprobs in output.logprobs:
            if positions := positions_of.get(logprobs.key):
                position = positions.pop()
                request = self._running.request_at(logprobs.key)
                index = position - request.num_prompt_tokens
                renamed.append((request.frontend, _renamed(logprobs, request.handle, index)))
        return renamed

    def _prompt_logprobs(
        self, output: ModelRunnerOutput, planned: PlannedStep
    ) -> list[tuple[FrontendId, TokenLogprobs]]:
        """Re-key prompt logprobs and leave out those sent before a preemption."""
        renamed = []
        for logprobs in output.prompt_logprobs:
            request = self._request_in(logprobs.key, planned.step)
            if request is not None and logprobs.token_index >= request.num_prompt_logprobs:
                request.num_prompt_logprobs = logprobs.token_index + 1
                renamed.append((request.frontend, _renamed(logprobs, request.handle, logprobs.token_index)))
        return renamed

    def _pooled(self, output: ModelRunnerOutput, planned: PlannedStep) -> list[tuple[FrontendId, Pooled]]:
        """Re-key vectors from rows to handles."""
        renamed = []
        for entry in output.pooled:
            request = self._request_in(entry.key, planned.step)
            if request is not None:
                renamed.append((request.frontend, Pooled(request.handle, entry.values)))
        return renamed

    def _request_in(self, row: int, step: int) -> Request | None:
        """Return the row's request if it is the one that `step` computed."""
        running = self._running
        return running.requests[row] if running.first_step[row] <= step else None


def _renamed(logprobs: TokenLogprobs, handle: int, index: int) -> TokenLogprobs:
    return msgspec.structs.replace(logprobs, key=handle, token_index=index)

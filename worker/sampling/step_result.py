"""The result of a step as it is assembled, and of a step still in flight on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.wire import Pooled, TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import DrafterEnds, ModelRunnerOutput, RowDrafts, RowError
from splitserve.worker.batch.agreement import Chosen
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import Drawing, Drawn, StepGraph
from splitserve.worker.batch.step_inputs import NO_ROWS
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.sampler import Sampled, Sampler, split_errors


class RowEnds(NamedTuple):
    """A drafter's name, and the drafts of every row once it had drafted, int32 [max_num_seqs]."""

    method: str
    ends: Int32


@dataclass(slots=True)
class StepResult:
    """What a step has produced so far."""

    errors: list[RowError]
    rows: list[Int32] = field(default_factory=list)
    run_lengths: list[Int32 | None] = field(default_factory=list)
    num_drafts: list[Int32 | None] = field(default_factory=list)
    token_ids: list[Int32] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    drafters: list[RowEnds] = field(default_factory=list)
    # Of `rows`, where the last stage of a pipeline drafts.
    next_drafts: RowDrafts | None = None

    def add(self, sampled: Sampled) -> None:
        """Add the result of one sampler call."""
        self.rows.append(sampled.rows)
        self.token_ids.append(sampled.token_ids)
        self.run_lengths.append(sampled.run_lengths)
        self.num_drafts.append(sampled.num_drafts)
        self.logprobs += sampled.logprobs
        self.errors += sampled.errors

    def add_ended(self, rows: Int32) -> None:
        """Add rows that had ended by their drafts before the step, and get nothing."""
        if len(rows):
            none = np.zeros(len(rows), np.int32)
            self.add(Sampled(rows, NO_ROWS, [], [], none, none))

    def fail_rows(self, batch: InputBatch) -> None:
        """Let the rows that have an error compute nothing more."""
        for error in self.errors:
            batch.fail(error)

    @property
    def chosen(self) -> Chosen:
        """The outcome that the ranks must agree on, before rows are added that had ended."""
        none = np.empty(0, np.int32)
        all_rows, lengths, last = [none], [none], [none]
        for rows, token_ids, runs in zip(self.rows, self.token_ids, self.run_lengths, strict=True):
            all_rows.append(rows)
            lengths.append(np.ones_like(rows) if runs is None else runs)
            last.append(token_ids if runs is None else token_ids[runs.cumsum() - 1])
        failed = [error.row for error in self.errors]
        return Chosen(np.concatenate(all_rows), np.concatenate(last), np.concatenate(lengths), failed)

    def pack(self, step: int, compute_s: float, move_s: float, draft_rest: int = 0) -> ModelRunnerOutput:
        """Return it as the answer to a step, whose moves and computing took so many seconds.

        Nobody will draft in draft_rest steps behind it.
        """
        return ModelRunnerOutput(
            step=step,
            rows=b"".join(map(pack_int32, self.rows)),
            token_ids=b"".join(map(pack_int32, self.token_ids)),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            errors=self.errors,
            compute_s=compute_s,
            move_s=move_s,
            pooled=self.pooled,
            run_lengths=self._packed(self.run_lengths, 1),
            num_drafts=self._packed(self.num_drafts, 0),
            drafters=self._packed_drafters(),
            draft_rest=draft_rest,
            next_drafts=self.next_drafts,
        )

    def _packed_drafters(self) -> list[DrafterEnds]:
        if not self.drafters:
            return []
        rows = np.concatenate(self.rows)
        return [DrafterEnds(each.method, pack_int32(each.ends[rows])) for each in self.drafters]

    def _packed(self, columns: list[Int32 | None], value: int) -> bytes:
        """Pack a column that some of the sampler's calls have, and fill in `value` for the others."""
        if all(column is None for column in columns):
            return b""
        filled = [
            np.full(len(rows), value, np.int32) if column is None else column
            for rows, column in zip(self.rows, columns, strict=True)
        ]
        return b"".join(map(pack_int32, filled))


def take_drawn(batch: InputBatch, rows: Int32, drawn: Drawn) -> StepResult:
    """Return the result for tokens that a graph has sampled and appended."""
    sampled = Sampled(rows, drawn.token_ids, [], [])
    if drawn.num_failed:
        sampled = split_errors(rows, drawn.token_ids, [], batch.sampling)
    result = StepResult([])
    result.add(sampled)
    return result


@dataclass(slots=True)
class StepToDraw:
    """A step whose model was enqueued, to be sampled once its masks are known; see StepHeld.

    Attributes:
        graph: draws.
        took: hears how many seconds the step took, if it is left running then.
    """

    graph: StepGraph
    took: Callable[[float], None] | None = None

    def when_done(self, took: Callable[[float], None]) -> None:
        """Let somebody know how many seconds the step took."""
        self.took = took


class StepRunning:
    """A decode step that was left running on the device, and what comes of it."""

    def __init__(
        self,
        sampler: Sampler,
        rows: Int32,
        drawing: Drawing,
        took: Callable[[float], None] | None = None,
    ) -> None:
        self._sampler = sampler
        self._rows = rows
        self._drawing = drawing
        self._result = StepResult([])
        self._took = took

    def when_done(self, took: Callable[[float], None]) -> None:
        """Let somebody know how many seconds the step took."""
        self._took = took

    def done(self, seconds: float) -> None:
        """Take note that the step, which has been waited for, took so long."""
        if self._took is not None:
            self._took(seconds)

    def wait(self) -> StepResult:
        """Wait for the tokens; see StepInFlight.finish."""
        self._result = take_drawn(self._sampler.batch, self._rows, self._drawing.wait())
        return self._result

    def apply(self) -> None:
        """Put them into the batch; see StepInFlight.apply."""
        self._drawing.apply()
        self._result.fail_rows(self._sampler.batch)
        self._sampler.took(self._result.rows[0], self._result.token_ids[0])

"""Which rows sampled which tokens in a step? The columns of a worker's output, checked against the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import ProtocolError, WorkerError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules

TokenColumn = npt.NDArray[np.int32]


class DrafterColumn(NamedTuple):
    """A drafter's name, and the drafts of each row once it had drafted, int64 [n]."""

    method: str
    ends: IntColumn


class SampledRuns(NamedTuple):
    """A run of tokens for each of some rows.

    Attributes:
        rows: int64 [n].
        token_ids: int32, one run after the other.
        lengths: int64 [n], of the runs; None if all are 1 and nobody drafted.
        num_drafts: int64 [n], drafts of each; comes with lengths.
        drafters: who made them, in their order.
    """

    rows: IntColumn
    token_ids: TokenColumn
    lengths: IntColumn | None = None
    num_drafts: IntColumn | None = None
    drafters: tuple[DrafterColumn, ...] = ()

    def alive(self, running: RunningRows, step: int) -> SampledRuns:
        """Return those of rows whose request had the row in this step already."""
        rows = self.rows
        alive = running.first_step[rows] <= step
        if np.count_nonzero(alive) == len(rows):
            return self
        if self.lengths is None or self.num_drafts is None:
            return SampledRuns(rows[alive], self.token_ids[alive])
        token_ids = self.token_ids[np.repeat(alive, self.lengths)]
        drafters = tuple(DrafterColumn(method, ends[alive]) for method, ends in self.drafters)
        return SampledRuns(rows[alive], token_ids, self.lengths[alive], self.num_drafts[alive], drafters)

    def columns(self) -> Iterator[tuple[IntColumn, TokenColumn]]:
        """Yield the first token of every run, then the second of those that have one, and so on.

        Each time the rows, [m] and each once, and their tokens.
        """
        assert self.lengths is not None, "one token each is one column"
        places = np.cumsum(self.lengths) - self.lengths
        for i in range(int(self.lengths.max(initial=0))):
            which = self.lengths > i
            yield self.rows[which], self.token_ids[places[which] + i]


def read_runs(
    output: ModelRunnerOutput,
    planned: PlannedStep,
    running: RunningRows,
    capacity: IntColumn,
    stops: StopRules,
) -> SampledRuns:
    """Unpack rows and tokens of an output.

    Args:
        output: of the worker.
        planned: the step that it answers, the oldest one in flight.
        running: the rows.
        capacity: int64 [max_num_seqs], tokens that a row's blocks hold.
        stops: know the vocabulary.

    Raises:
        WorkerError: they are not what was planned, or no tokens of the vocabulary.
    """
    try:
        token_ids = unpack_int32(output.token_ids)
        if output.rows == planned.packed_sampling_rows and not output.errors:
            rows = planned.sampling_rows
        else:
            rows = unpack_int32(output.rows).astype(np.int64)
            _check_rows(output, planned, rows)
        lengths = num_drafts = None
        drafters: tuple[DrafterColumn, ...] = ()
        if output.run_lengths:
            lengths = unpack_int32(output.run_lengths).astype(np.int64)
            num_drafts = unpack_int32(output.num_drafts).astype(np.int64)
            drafters = tuple(
                DrafterColumn(each.method, unpack_int32(each.ends).astype(np.int64))
                for each in output.drafters
            )
    except ProtocolError as error:
        raise WorkerError(f"output of step {output.step}: {error}") from None
    num_tokens = len(rows)
    if lengths is not None and num_drafts is not None:
        runs = SampledRuns(rows, token_ids, lengths, num_drafts, drafters)
        _check_lengths(output, planned, running, runs)
        _check_room(output, planned, running, capacity, runs)
        num_tokens = int(lengths.sum())
    if len(token_ids) != num_tokens:
        raise WorkerError(
            f"output of step {output.step} has {len(token_ids)} tokens for {len(rows)} rows, "
            f"which sampled {num_tokens}"
        )
    if not stops.knows(token_ids):
        raise WorkerError(f"output of step {output.step} holds token ids outside the vocabulary")
    return SampledRuns(rows, token_ids, lengths, num_drafts, drafters)


def _check_rows(output: ModelRunnerOutput, planned: PlannedStep, rows: IntColumn) -> None:
    """Check that the rows, in any order, are those that were to sample and did not fail."""
    expected = planned.sampling_rows
    if output.errors:
        failed = [error.row for error in output.errors]
        if not set(failed) <= set(planned.rows.tolist()):
            raise WorkerError(f"output of step {output.step} has errors of rows {failed}, not all are in it")
        expected = expected[~np.isin(expected, failed)]
    if not np.array_equal(np.sort(rows), np.sort(expected)):
        raise WorkerError(f"output of step {output.step} does not hold the rows that were to sample")


def _check_lengths(
    output: ModelRunnerOutput, planned: PlannedStep, running: RunningRows, runs: SampledRuns
) -> None:
    """Check that runs are as long as they may be; only a row that has ended since may have none."""
    rows, lengths, num_drafts = runs.rows, runs.lengths, runs.num_drafts
    assert lengths is not None
    assert num_drafts is not None
    if not len(lengths) == len(num_drafts) == len(rows):
        raise WorkerError(f"output of step {output.step} has {len(lengths)} runs for {len(rows)} rows")
    for method, ends in runs.drafters:
        if len(ends) != len(rows):
            raise WorkerError(
                f"output of step {output.step} has drafts of {len(ends)} rows by {method[:32]!r}, not of "
                f"{len(rows)}"
            )
    shortest = (running.first_step[rows] <= planned.step).astype(np.int64)
    is_wrong = (lengths < shortest) | (lengths > 1 + num_drafts)
    wrong = (is_wrong | (num_drafts < 0) | (num_drafts > planned.max_drafts)).nonzero()[0]
    if len(wrong):
        i = int(wrong[0])
        raise WorkerError(
            f"output of step {output.step} has {lengths[i]} tokens of row {rows[i]} with {num_drafts[i]} "
            f"drafts, which may have up to {planned.max_drafts}"
        )


def _check_room(
    output: ModelRunnerOutput,
    planned: PlannedStep,
    running: RunningRows,
    capacity: IntColumn,
    runs: SampledRuns,
) -> None:
    """Check that drafts stood in the blocks of their rows, of those whose request has not left since."""
    rows, num_drafts = runs.rows, runs.num_drafts
    assert num_drafts is not None
    has_room = running.num_known_tokens[rows] + num_drafts <= capacity[rows]
    wrong = (~has_room & (running.first_step[rows] <= planned.step)).nonzero()[0]
    if len(wrong):
        i = int(wrong[0])
        raise WorkerError(
            f"output of step {output.step} has {num_drafts[i]} drafts of row {rows[i]}, whose blocks hold "
            f"{capacity[rows[i]]} tokens"
        )

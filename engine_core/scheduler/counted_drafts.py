"""How far are rows once it is known which of a step's drafts count, and who had made those?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.ipc.messages import Drafted
from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.engine_core.request import FrontendId
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import ONE, IntColumn, RunningRows
from splitserve.engine_core.scheduler.sampled_runs import SampledRuns


class StepDrafts(NamedTuple):
    """What was drafted in a step, for rows whose request had not ended before.

    Attributes:
        by_request: what frontends are told of it.
        by_drafter: the sums of each that has drafted.
    """

    by_request: list[tuple[FrontendId, Drafted]]
    by_drafter: list[DraftCounts]


NO_DRAFTS = StepDrafts([], [])


def count_drafts(
    running: RunningRows, steps: Sequence[PlannedStep], sampled: SampledRuns, known: IntColumn
) -> StepDrafts:
    """Advance rows by the drafts that count, in the columns and in the steps that were planned without them.

    Args:
        running: with the tokens of the step, as far as they are emitted.
        steps: the one that allowed for the drafts, and those in flight behind it.
        sampled: what it sampled, of rows whose request has the row still.
        known: int64 [n], num_known_tokens of these rows before.
    """
    rows = sampled.rows
    running.num_possible_drafts[rows] -= steps[0].max_drafts
    if sampled.num_drafts is None:
        return NO_DRAFTS
    # Of a row that ends within its run, no more than is emitted.
    num_counted = np.maximum(running.num_known_tokens[rows] - known - ONE, 0)
    by_request = _count_for_requests(running, rows, sampled.num_drafts, num_counted, known)
    running.num_tokens[rows] += num_counted
    # A row that ends by its drafts computes nothing in the steps behind, though they count it.
    computed = running.num_computed_tokens[rows] + num_counted
    running.num_computed_tokens[rows] = np.minimum(computed, running.max_num_computed_tokens[rows])
    ahead = np.zeros(len(running.requests), np.int64)
    ahead[rows] = num_counted
    for step in steps:
        np.add(step.num_computed_tokens, ahead[step.rows], out=step.num_computed_tokens)
    return StepDrafts(by_request, _count_for_drafters(sampled, sampled.num_drafts, num_counted))


def _count_for_requests(
    running: RunningRows,
    rows: IntColumn,
    num_drafts: IntColumn,
    num_counted: IntColumn,
    known: IntColumn,
) -> list[tuple[FrontendId, Drafted]]:
    drafted = num_drafts.nonzero()[0]
    requests = running.requests_at(rows[drafted])
    columns = [column[drafted].tolist() for column in (known, num_drafts, num_counted)]
    told = []
    for request, position, drafts, counted in zip(requests, *columns, strict=True):
        request.num_draft_tokens += drafts
        request.num_accepted_draft_tokens += counted
        first = position - request.num_prompt_tokens
        told.append((request.frontend, Drafted(request.handle, first, drafts, counted)))
    return told


def _count_for_drafters(
    sampled: SampledRuns, num_drafts: IntColumn, num_counted: IntColumn
) -> list[DraftCounts]:
    counts = []
    begins = np.zeros_like(num_drafts)
    for method, column in sampled.drafters:
        # What was cut off behind a drafter was not computed.
        ends = np.clip(column, begins, num_drafts)
        if (ends > begins).any():
            counts.append(_count(method, begins, ends, np.minimum(num_counted, ends)))
        begins = ends
    return counts


def _count(method: str, begins: IntColumn, ends: IntColumn, counted: IntColumn) -> DraftCounts:
    """Count by place behind the row's last token; the drafter's drafts are those from begins to ends."""
    places = np.arange(int(ends.max(initial=0)))[:, None]
    behind = places >= begins
    drafted = (behind & (places < ends)).sum(axis=1)
    return DraftCounts(method, drafted.tolist(), (behind & (places < counted)).sum(axis=1).tolist())

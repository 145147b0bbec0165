"""How far are rows once it is known which of a step's drafts count?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import ONE, IntColumn, RunningRows
from splitserve.engine_core.scheduler.sampled_runs import SampledRuns


def count_drafts(
    running: RunningRows, steps: Sequence[PlannedStep], sampled: SampledRuns, known: IntColumn
) -> None:
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
        return
    # Of a row that ends within its run, no more than is emitted.
    num_counted = np.maximum(running.num_known_tokens[rows] - known - ONE, 0)
    _count_for_requests(running, rows, sampled.num_drafts, num_counted)
    running.num_tokens[rows] += num_counted
    # A row that ends by its drafts computes nothing in the steps behind, though they count it.
    computed = running.num_computed_tokens[rows] + num_counted
    running.num_computed_tokens[rows] = np.minimum(computed, running.max_num_computed_tokens[rows])
    ahead = np.zeros(len(running.requests), np.int64)
    ahead[rows] = num_counted
    for step in steps:
        np.add(step.num_computed_tokens, ahead[step.rows], out=step.num_computed_tokens)


def _count_for_requests(
    running: RunningRows, rows: IntColumn, num_drafts: IntColumn, num_counted: IntColumn
) -> None:
    drafted = num_drafts.nonzero()[0]
    requests = running.requests_at(rows[drafted])
    counts = num_drafts[drafted].tolist(), num_counted[drafted].tolist()
    for request, drafts, counted in zip(requests, *counts, strict=True):
        request.num_draft_tokens += drafts
        request.num_accepted_draft_tokens += counted

"""Which rows may go into the next step, so that the stages of a pipeline work on different rows."""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.scheduler.running import ONE, IntColumn, RunningRows


def microbatch(running: RunningRows, num_stages: int) -> IntColumn:
    """Return the rows a step may compute, in the order they are served.

    A row whose token is still being sampled waits until it is known: the first stage needs it, and only the
    last one has it. Of the rows that decode a stage's share goes at once, so that others are left for the
    steps behind. A prompt goes on in chunks, one behind the other. Without a pipeline these are all rows:
    the worker that samples a token also computes it.
    """
    rows = running.order
    if num_stages == 1:
        return rows
    known = running.num_known_tokens[rows]
    is_ready = running.num_tokens[rows] == known
    decodes = known - running.num_computed_tokens[rows] == ONE
    num_decoding = int(np.count_nonzero(decodes | ~is_ready))
    share = -(-num_decoding // num_stages)
    decodes &= is_ready
    chosen: IntColumn = rows[is_ready & (~decodes | (np.cumsum(decodes) <= share))]
    return chosen

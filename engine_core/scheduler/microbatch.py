"""Which rows may go into the next step, so that the stages of a pipeline work on different rows?"""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.scheduler.running import ONE, IntColumn, RunningRows


def microbatch(running: RunningRows, num_stages: int) -> IntColumn:
    """Return the rows a step may compute, in the order they are served.

    A row whose token is still being sampled waits until it is known: the first stage needs it, and only the
    last one has it. Only one stage's share of the decoding rows goes into a step, so that others are left for
    the steps after it. A prompt's chunks may follow each other directly. Without a pipeline all rows are
    returned: the worker that samples a token also computes its KV.
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

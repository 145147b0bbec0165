"""Which rows' prefill is cut when a step may hold only so many prefill tokens beside decoding rows."""

from __future__ import annotations

import numpy as np

from engine_core.scheduler.running import IntColumn


def cap_prefill(num_tokens: IntColumn, max_prefill_tokens: int, budget: int) -> IntColumn:
    """Cut what prefilling rows want so that together they stay within the cap, first rows first.

    Decoding rows keep their token as far as the budget allows: prefill leaves them room. When nobody decodes
    nothing is cut.

    Args:
        num_tokens: int64 [n]; what rows want, in order; a row that wants one token decodes.
        max_prefill_tokens: the cap, at least 1.
        budget: tokens of the whole step.

    Returns:
        int64 [n]; may hold zeros.
    """
    num_decoding = int(np.count_nonzero(num_tokens == 1))
    wanted = np.where(num_tokens > 1, num_tokens, 0)
    allowed = max(1, min(max_prefill_tokens, budget - num_decoding))
    if num_decoding == 0 or wanted.sum() <= allowed:
        return num_tokens
    before = np.cumsum(wanted) - wanted
    return np.where(num_tokens > 1, np.clip(allowed - before, 0, wanted), num_tokens)


def prefill_left(num_tokens: IntColumn, max_prefill_tokens: int, budget: int) -> int:
    """Return how many prefill tokens newcomers may add to a step.

    Args:
        num_tokens: int64 [n]; what running rows get.
        max_prefill_tokens: the cap.
        budget: tokens that are left of the whole step.
    """
    if not (num_tokens == 1).any():
        return budget
    return min(budget, max_prefill_tokens - int(num_tokens[num_tokens > 1].sum()))

"""How much prefill may a step hold besides decoding rows, so that it ends within the target?

Turns what step_costs.py has learnt into integers for the scheduler: time for how many tokens is left besides
the decoding rows, and how fast a token's cost grows with its context.
"""

from __future__ import annotations

from splitserve.engine_core.scheduler.pacing.prefill_cap import PrefillCap
from splitserve.engine_core.scheduler.pacing.step_costs import PrefillCost, StepCosts

# However short the target, prompts make progress: by this many tokens per step, and by what fits into this
# share of the decoding rows' time. So a target that decoding alone misses is missed by another quarter.
MIN_CHUNK_TOKENS = 16
MIN_PREFILL_SHARE = 0.25
# Used before anything is known.
FIRST_CHUNK_TOKENS = 128
# Aim below the target: single steps scatter around the prediction.
AIM = 0.9
# More than any step's budget, and longer than any sequence.
MAX_TOKENS = 2**40
MAX_CONTEXT = 2**30


class StepPacer:
    """Keeps steps with decoding rows within a target, as far as limiting prefill can.

    Args:
        target_s: longest step wanted while rows decode, above 0.
        costs: how long steps take; updated elsewhere.
    """

    def __init__(self, target_s: float, costs: StepCosts) -> None:
        self._target_s = target_s
        self._costs = costs

    def cap(self, num_decoding: int) -> PrefillCap:
        """Return what a step may spend on prefill besides `num_decoding` decoding rows."""
        cost = self._costs.prefill()
        if cost is None:
            return PrefillCap(0, 1, FIRST_CHUNK_TOKENS)
        decode_s = self._costs.decode_s(num_decoding)
        room_s = max(AIM * self._target_s - decode_s, MIN_PREFILL_SHARE * decode_s)
        context = _doubling_context(cost)
        # If all of the cost is in the context, the first token costs as much as its own attention.
        token_s = max(cost.token_s, cost.context_s)
        # Compare before dividing: a prefill that took no time has no limit.
        num_tokens = MAX_TOKENS if room_s >= MAX_TOKENS * token_s else int(room_s / token_s)
        return PrefillCap(num_tokens, context, MIN_CHUNK_TOKENS, cost.window)


def _doubling_context(cost: PrefillCost) -> int:
    """Return the context, 1 to MAX_CONTEXT, that doubles the cost of a token."""
    if cost.token_s >= MAX_CONTEXT * cost.context_s:
        return MAX_CONTEXT
    return max(1, int(cost.token_s / cost.context_s))

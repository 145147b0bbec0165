"""How many tokens may a step compute? The configured number, and fewer after a step ran out of memory.

A worker checks beforehand that the largest step fits its memory, so it runs out only if another process has
taken some. The memory a step needs grows with its tokens. So the budget drops to half of the failed step,
and recovers by 1/256 of the configured number with every step that succeeds and has nothing to lose
(engine_core.scheduler.memory_retries). That is additive increase, multiplicative decrease: Chiu and Jain,
"Analysis of the increase and decrease algorithms for congestion avoidance", 1989.
"""

from __future__ import annotations

_STEPS_TO_RECOVER = 256


class StepBudget:
    """Tokens of the next step, 1 to max_num_batched_tokens.

    Attributes:
        num_tokens: the budget; at least 1.
        max_num_tokens: the configured one.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.max_num_tokens = max_num_batched_tokens
        self._increase = -(-max_num_batched_tokens // _STEPS_TO_RECOVER)
        self.num_tokens = max_num_batched_tokens

    def shrink(self, num_failed_tokens: int) -> None:
        """Lower the budget: a step of `num_failed_tokens` ran out of memory."""
        self.num_tokens = max(1, min(self.num_tokens, num_failed_tokens // 2))

    def grow(self) -> None:
        """Raise the budget: a step succeeded."""
        if self.num_tokens < self.max_num_tokens:
            self.num_tokens = min(self.max_num_tokens, self.num_tokens + self._increase)

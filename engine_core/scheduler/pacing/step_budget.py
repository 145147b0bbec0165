"""How many tokens a step may compute: the configured number, and fewer after a step ran out of memory.

A worker measures beforehand that the largest step fits its memory, so it runs out only when somebody else has
taken some. A step's share of memory grows with its tokens. So the budget falls to half of what failed, and
comes back by a 256th of the whole with every step that goes well and has nothing to lose
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
        """Plan less: a step of so many tokens ran out of memory."""
        self.num_tokens = max(1, min(self.num_tokens, num_failed_tokens // 2))

    def grow(self) -> None:
        """Plan more: a step went well."""
        if self.num_tokens < self.max_num_tokens:
            self.num_tokens = min(self.max_num_tokens, self.num_tokens + self._increase)

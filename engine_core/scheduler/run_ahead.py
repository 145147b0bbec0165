"""May more than two steps be planned ahead? Decode steps may, if they are shorter than their overhead.

A small model decodes a token in less time than it takes to plan, send and answer the step. With up to four
such steps in flight the worker answers two at a time (worker.batch.replies), so that one round of the
engine's loop, one message each way and one to each frontend serve two tokens.

The cost: a row ended by a stop token computes up to three tokens in vain instead of one, and a new request
waits for up to four steps of less than SHORT_STEP_S each.
"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.config import SHORT_STEP_S
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import RunningRows

MAX_STEPS_AHEAD = 4
_ONE_TOKEN = pack_int32([1])


class RunAhead:
    """Knows how long steps take, and which may follow each other before their tokens are known.

    Args:
        running: the rows.
        max_chunk: most tokens of one row per step.
        num_stages: of the pipeline; with several, a row waits for its token before it is planned again.
    """

    def __init__(self, running: RunningRows, max_chunk: int, num_stages: int) -> None:
        self._running = running
        self._one_token_each = _ONE_TOKEN * len(running.requests)
        # In a sliding-window model a row's blocks allow for two chunks: room for these steps' tokens.
        self._is_possible = num_stages == 1 and max_chunk >= MAX_STEPS_AHEAD
        self._steps_are_short = False

    def observe(self, compute_s: float) -> None:
        """Learn how long the last step took."""
        self._steps_are_short = self._is_possible and compute_s < SHORT_STEP_S

    def has_room(self, in_flight: Sequence[PlannedStep]) -> bool:
        """Whether one more decode step may follow: all of these compute one token of every running row."""
        if not self._steps_are_short or len(in_flight) >= MAX_STEPS_AHEAD:
            return False
        one_token_each = self._one_token_each[: len(self._running) * len(_ONE_TOKEN)]
        return all(step.packed_num_tokens == one_token_each for step in in_flight)

"""What were the last steps like? Kept for who watches; their tokens are counted when somebody asks."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.wire import StepColumns

MAX_STEPS = 1024
# Who watches asks once a second, and may be late.
SHOWN_S = 2.5


class _Step(NamedTuple):
    """One step; the column is int32 tokens per row, preemptions are those since the engine's start."""

    step: int
    end_s: float
    seconds: float
    packed_num_tokens: bytes
    num_preemptions: int


class RecentSteps:
    """The last MAX_STEPS steps; used by the engine's thread. A step costs an append."""

    def __init__(self) -> None:
        # Of the fields of _Step, which take longer to make than a tuple.
        self._steps: deque[tuple[int, float, float, bytes, int]] = deque(maxlen=MAX_STEPS)

    def add(self, step: int, end_s: float, seconds: float, tokens: bytes, preemptions: int) -> None:
        """Note a step that has ended.

        Args:
            step: its number.
            end_s: when it ended, on the engine's clock.
            seconds: how long it took.
            tokens: int32 column of those it computed of each row.
            preemptions: since the engine's start.
        """
        self._steps.append((step, end_s, seconds, tokens, preemptions))

    def columns(self, now_s: float) -> StepColumns:
        """Return the steps of the last SHOWN_S; O(their rows)."""
        steps = [step for step in map(_Step._make, self._steps) if step.end_s >= now_s - SHOWN_S]
        counts = [unpack_int32(step.packed_num_tokens) for step in steps]
        decoded = [int(np.count_nonzero(column == 1)) for column in counts]
        sums = [int(column.sum()) for column in counts]
        return StepColumns(
            first_step=steps[0].step if steps else 0,
            ago_us=_micros([now_s - step.end_s for step in steps]),
            time_us=_micros([step.seconds for step in steps]),
            num_rows=pack_int32(np.array([len(column) for column in counts], np.int32)),
            num_decode_tokens=pack_int32(np.array(decoded, np.int32)),
            num_prefill_tokens=pack_int32(np.array(sums, np.int32) - np.array(decoded, np.int32)),
            num_preemptions=pack_int32(self._preemptions(steps)),
        )

    def _preemptions(self, steps: list[_Step]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return those between each step and the one before it; none for the oldest that is known."""
        before = len(self._steps) - len(steps) - 1
        first = _Step._make(self._steps[max(before, 0)]).num_preemptions if steps else 0
        return np.diff([first, *(step.num_preemptions for step in steps)]).astype(np.int32)


def _micros(seconds: list[float]) -> bytes:
    return pack_int32((np.array(seconds) * 1e6).clip(0, 2**31 - 1).astype(np.int32))

"""How many prefill tokens may a step hold while others decode, so that it ends within the target?

The time of a step is modelled as fixed + per_row x decoding rows + per_token x prefill tokens, fitted from
the times workers report. Old steps fade, so the fit follows contexts that grow and machines that slow down:

    steps that decode only      straight line over the number of rows (least squares, older steps count less)
    steps that prefill as well  what they took beyond that line, per prefill token

Prefill costs more per token the smaller the chunk is. The ratio at the chunks of the last steps leads to
larger ones as long as those stay within the target, so the cap settles where they just do.

Owned by the engine; floats live here, the scheduler is handed a number of tokens.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from engine_core.ipc.codec import pack_int32, unpack_int32

# However short the target, prompts get on: by so many tokens in each step, and by what fits into so large
# a part of the time the decoding rows take. So a target that decoding alone misses is missed by a quarter.
MIN_CHUNK_TOKENS = 16
MIN_PREFILL_SHARE = 0.25
# Before anything is known.
FIRST_CHUNK_TOKENS = 128
# Aim below the target: single steps scatter around the prediction.
AIM = 0.9
DECODE_MEMORY = 0.98
PREFILL_MEMORY = 0.8
MAX_STEPS_IN_FLIGHT = 2


class _Planned(NamedTuple):
    num_decoding: int
    num_prefill_tokens: int


class FadingLine:
    """Straight line through points of which older ones count less; neither slope nor offset is negative."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._weight = 0.0
        self._mean_x = 0.0
        self._mean_y = 0.0
        self._var_x = 0.0
        self._cov = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any point was added."""
        return self._weight > 0

    def add(self, x: float, y: float) -> None:
        """Take in one point."""
        self._weight = self._weight * self._memory + 1.0
        share = 1.0 / self._weight
        dx, dy = x - self._mean_x, y - self._mean_y
        self._mean_x += share * dx
        self._mean_y += share * dy
        self._var_x = (1 - share) * (self._var_x + share * dx * dx)
        self._cov = (1 - share) * (self._cov + share * dx * dy)

    def at(self, x: float) -> float:
        """Return the line's height; of a single x, or a falling line, the mean height."""
        slope = max(0.0, self._cov / self._var_x) if self._var_x > 1e-9 else 0.0
        return max(0.0, self._mean_y + slope * (x - self._mean_x))


class StepPacer:
    """Turns measured step times into a cap on the next step's prefill tokens.

    Args:
        target_s: longest step wanted while rows decode, above 0.
        max_num_batched_tokens: the step's budget, which the cap never exceeds.
    """

    def __init__(self, target_s: float, max_num_batched_tokens: int) -> None:
        self._target_s = target_s
        self._max_tokens = max_num_batched_tokens
        # What a step looks like in which everyone decodes; comparing bytes is cheaper than counting.
        self._ones = pack_int32(np.ones(max_num_batched_tokens, np.int32))
        self._decode = FadingLine(DECODE_MEMORY)
        self._prefill_s = 0.0
        self._prefill_tokens = 0.0
        self._in_flight: deque[_Planned] = deque()

    def max_prefill_tokens(self, num_decoding: int) -> int:
        """Return the cap for a step beside so many decoding rows, at least a minimal chunk."""
        decode_s = self._decode.at(num_decoding)
        room_s = max(AIM * self._target_s - decode_s, MIN_PREFILL_SHARE * decode_s)
        if self._prefill_tokens == 0:
            tokens = FIRST_CHUNK_TOKENS
        else:
            # Compared before it is converted: a prefill that took no time has no bound.
            fits = room_s * self._prefill_tokens
            wants = self._max_tokens * self._prefill_s
            tokens = self._max_tokens if fits >= wants else int(fits / self._prefill_s)
        return min(max(tokens, MIN_CHUNK_TOKENS), self._max_tokens)

    def planned(self, packed_num_tokens: bytes) -> None:
        """Remember a step that was planned.

        Args:
            packed_num_tokens: int32 column [n]; tokens of each row; a row with one token decodes.
        """
        assert len(self._in_flight) < MAX_STEPS_IN_FLIGHT, "measured() follows planned()"
        if packed_num_tokens != self._ones[: len(packed_num_tokens)]:
            num_tokens = unpack_int32(packed_num_tokens)
            num_decoding = int(np.count_nonzero(num_tokens == 1))
            self._in_flight.append(_Planned(num_decoding, int(num_tokens.sum()) - num_decoding))
        else:
            self._in_flight.append(_Planned(len(packed_num_tokens) // 4, 0))

    def measured(self, compute_s: float) -> None:
        """Take in the time of the oldest planned step; a worker that always says 0 is never capped."""
        step = self._in_flight.popleft()
        if step.num_prefill_tokens == 0:
            self._decode.add(step.num_decoding, compute_s)
            return
        base_s = self._decode.at(step.num_decoding) if self._decode.is_known else 0.0
        self._prefill_s = PREFILL_MEMORY * self._prefill_s + max(0.0, compute_s - base_s)
        self._prefill_tokens = PREFILL_MEMORY * self._prefill_tokens + step.num_prefill_tokens

"""How long does a step take on this worker, given what it computes?

Fitted from the times that workers report, with coefficients that are never negative:

    decoding    fixed + per decoding row                              steps that only decode
    prefill     per prefill token + per token of its context          what a step took beyond decoding

Both are straight lines fitted to weighted points: seconds over decoding rows, and seconds per prefill token
over the mean context of these tokens. (So a prompt's time has a linear and a quadratic term in its length, as
attention reads one key per earlier token, or per token of the window.) Old points fade, so the fit follows
growing contexts and machines that slow down.

Owned by the engine's thread. Floats stay in here; decisions are made on integers.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.scheduler.running import IntColumn

DECODE_MEMORY = 0.98
PREFILL_MEMORY = 0.9
# Chunks of at least this size count as one point, smaller ones as a fraction: the time of a few tokens
# besides many decoding rows is less than the noise in the rows' times.
FULL_CHUNK_TOKENS = 128
# How far rows and contexts must be spread to determine the slope. Otherwise the noise of many short prompts
# would set the estimated cost of a long one.
ROWS_SPREAD = 1.0
CONTEXT_SPREAD = 128.0
# A step interrupted by another process says little: its time counts at most as this multiple of its estimate.
MAX_RISE = 2.0
# Below this an estimate does not limit new points: the worker has only reported 0 so far.
MIN_ESTIMATE = 1e-9
# Longer times, and NaN, are ignored.
MAX_STEP_S = 3600.0
# Equal decode steps are added together, which makes each cost 0.2 us instead of 1.
MAX_PENDING_STEPS = 16
MAX_NS = 2**62
# The window of a model without one: longer than any sequence.
NO_WINDOW = 2**31


class FadingLine:
    """Straight line fitted to points, older ones counting less; neither slope nor offset is negative.

    Weighted least squares; each new point multiplies the weights of all earlier ones by `memory`. Where the
    points lie closer together than `spread`, the slope stays near its earlier value.

    Args:
        memory: above 0, below 1.
        spread: standard deviation of x at which points and the slope so far count the same; above 0.
    """

    def __init__(self, memory: float, spread: float) -> None:
        self._memory = memory
        self._inertia = spread * spread
        self._weight = 0.0
        self._mean_x = 0.0
        self._mean_y = 0.0
        self._var_x = 0.0
        self._cov = 0.0
        self._slope = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any point was added."""
        return self._weight > 0

    @property
    def slope(self) -> float:
        """Rise of y per x, at least 0."""
        return self._slope

    def add(self, x: float, y: float, num_points: float = 1.0) -> None:
        """Add a point, both coordinates at least 0, as if it came num_points times (above 0)."""
        y = min(y, self.highest(x))
        kept = self._memory**num_points
        self._weight = self._weight * kept + (1 - kept)
        share = (1 - kept) / self._weight
        dx, dy = x - self._mean_x, y - self._mean_y
        self._mean_x += share * dx
        self._mean_y += share * dy
        self._var_x = (1 - share) * (self._var_x + share * dx * dx)
        self._cov = (1 - share) * (self._cov + share * dx * dy)
        slope = (self._cov + self._inertia * self._slope) / (self._var_x + self._inertia)
        # With a line steeper than one through the origin the offset would be negative.
        steepest = self._mean_y / self._mean_x if self._mean_x > 0 else slope
        self._slope = max(0.0, min(slope, steepest))

    def at(self, x: float) -> float:
        """Return the line's height at x >= 0; 0 while nothing is known."""
        return max(0.0, self._mean_y + self._slope * (x - self._mean_x))

    def highest(self, x: float) -> float:
        """Return the largest value that a point at x >= 0 may count as."""
        if self._mean_y <= MIN_ESTIMATE:
            return math.inf
        return MAX_RISE * max(self._mean_y, self.at(x))


class PrefillCost(NamedTuple):
    """What prefill adds to a step.

    Attributes:
        token_s: seconds for a token at the start of its sequence.
        context_s: additional seconds per token of its context.
        window: most tokens of context that count.
    """

    token_s: float
    context_s: float
    window: int

    def seconds(self, first_token: int, end_token: int) -> float:
        """Return the time of computing these positions of a sequence, 0 <= first_token <= end_token."""
        context = _context_until(end_token, min(end_token, self.window))
        context -= _context_until(first_token, min(first_token, self.window))
        return self.token_s * (end_token - first_token) + self.context_s * context / 2


_Tokens = TypeVar("_Tokens", int, IntColumn)


def _context_until(end: _Tokens, in_window: _Tokens) -> _Tokens:
    """Return twice the summed context of the first `end` tokens, `in_window` of which do not fill the window.

    At position p that is 2 p + 1, up to the window's size: doubled so that integers do not lose the halves.
    """
    return in_window * in_window + 2 * in_window * (end - in_window)


class StepCosts:
    """Learns from every step, at the cost of two comparisons and two additions in a steady decode step.

    Args:
        max_num_batched_tokens: the step's budget, tokens.
        sliding_window: tokens that attention looks back at most; 0 for all.
    """

    def __init__(self, max_num_batched_tokens: int, sliding_window: int = 0) -> None:
        self._window = sliding_window or NO_WINDOW
        # The column of a step in which every row decodes; comparing bytes is cheaper than counting.
        self._ones = pack_int32(np.ones(max_num_batched_tokens, np.int32))
        self._decode = FadingLine(DECODE_MEMORY, ROWS_SPREAD)
        self._prefill = FadingLine(PREFILL_MEMORY, CONTEXT_SPREAD)
        self._pending_bytes = 0
        self._num_pending = 0
        self._pending_s = 0.0
        self._highest_s = math.inf

    def observe(self, packed_num_tokens: bytes, num_computed_tokens: IntColumn, seconds: float) -> None:
        """Learn from one step; ignored if its time is negative, NaN or above an hour.

        Args:
            packed_num_tokens: int32 column [n]; tokens of each row; a row with one token decodes.
            num_computed_tokens: int64 [n]; the rows' counts after the step.
            seconds: what computing it took.
        """
        if not 0.0 <= seconds <= MAX_STEP_S:
            return
        num_bytes = len(packed_num_tokens)
        if packed_num_tokens != self._ones[:num_bytes]:
            self._observe_prefill(unpack_int32(packed_num_tokens), num_computed_tokens, seconds)
            return
        if num_bytes != self._pending_bytes or self._num_pending >= MAX_PENDING_STEPS:
            self._take_in_pending()
            self._pending_bytes = num_bytes
            self._highest_s = self._decode.highest(num_bytes // 4)
        self._num_pending += 1
        self._pending_s += seconds if seconds < self._highest_s else self._highest_s

    def decode_s(self, num_decoding: int) -> float:
        """Return the seconds of a step with `num_decoding` decoding rows and no prefill; 0 if unknown."""
        self._take_in_pending()
        return self._decode.at(num_decoding)

    def prefill(self) -> PrefillCost | None:
        """Return what prefill adds to a step; None before the first step that prefilled."""
        if not self._prefill.is_known:
            return None
        return PrefillCost(self._prefill.at(0), self._prefill.slope, self._window)

    def step_s(self, packed_num_tokens: bytes, num_computed_tokens: IntColumn) -> float | None:
        """Return the seconds that a step should take; None while too little is known.

        Args:
            packed_num_tokens: int32 column [n]; tokens of each row.
            num_computed_tokens: int64 [n]; the rows' counts after the step.
        """
        num_tokens = unpack_int32(packed_num_tokens)
        prefills = num_tokens > 1
        num_decoding = len(num_tokens) - int(np.count_nonzero(prefills))
        decode_s = self.decode_s(num_decoding)
        if num_decoding and not self._decode.is_known:
            return None
        if num_decoding == len(num_tokens):
            return decode_s
        cost = self.prefill()
        if cost is None:
            return None
        ends = num_computed_tokens[prefills].tolist()
        chunks = num_tokens[prefills].tolist()
        return decode_s + sum(cost.seconds(end - n, end) for end, n in zip(ends, chunks, strict=True))

    def recompute_ns(self, first_token: int, end_token: int) -> int:
        """Return the nanoseconds it would take to recompute the KV of these positions.

        Args:
            first_token: position of the first of them in its sequence, at least 0.
            end_token: position after the last of them, at least first_token.

        Returns:
            0 to 2**62; 0 while nothing is known.
        """
        assert 0 <= first_token <= end_token, f"positions {first_token} to {end_token}"
        cost = self.prefill()
        return 0 if cost is None else int(min(1e9 * cost.seconds(first_token, end_token), MAX_NS))

    def _take_in_pending(self) -> None:
        if self._num_pending:
            num_decoding, mean_s = self._pending_bytes // 4, self._pending_s / self._num_pending
            self._decode.add(num_decoding, mean_s, self._num_pending)
            self._pending_bytes = self._num_pending = 0
            self._pending_s = 0.0

    def _observe_prefill(
        self, num_tokens: npt.NDArray[np.int32], computed: IntColumn, seconds: float
    ) -> None:
        prefills = num_tokens > 1
        chunks = num_tokens[prefills].astype(np.int64)
        total = int(chunks.sum())
        ends = computed[prefills]
        begins = ends - chunks
        context = _context_until(ends, np.minimum(ends, self._window))
        context -= _context_until(begins, np.minimum(begins, self._window))
        excess_s = max(0.0, seconds - self.decode_s(len(num_tokens) - len(chunks)))
        self._prefill.add(
            float(context.sum()) / 2 / total, excess_s / total, min(1.0, total / FULL_CHUNK_TOKENS)
        )

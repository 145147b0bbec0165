"""Whether an output goes round in a loop: its last tokens are one pattern, several times in a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.sequence_sampling import RepetitionDetection

# Stands for tokens before the first; equal to no token id.
_NOTHING = -1


class RepetitionTail:
    """The end of one output, and for every pattern size how long it has been repeating.

    The last `size * count` tokens are one pattern `count` times if and only if each of the last
    `size * (count - 1)` equals the token `size` places before it. So one run length per size suffices, and a
    token costs a few operations on arrays of max_pattern_size entries, whatever the output's length.

    Attributes:
        found: whether the last token completed enough repetitions; never below min_tokens.
    """

    def __init__(
        self,
        detection: RepetitionDetection,
        min_tokens: int = 0,
        output: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Args: min_tokens may not end the output; output is what a resumed request has already."""
        sizes = np.arange(detection.min_pattern_size, detection.max_pattern_size + 1)
        self.found = False
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._needed = sizes * (detection.min_count - 1)
        self._runs = np.zeros(len(sizes), np.int64)
        # Newest token first: entry i is i + 1 places before the next token.
        self._recent = np.full(detection.max_pattern_size, _NOTHING, np.int32)
        self._compared = self._recent[detection.min_pattern_size - 1 :]
        if output is not None and len(output):
            self._take(output, sizes, detection.min_count)

    def push(self, token_id: int) -> bool:
        """Append one output token and return `found`."""
        self._runs += 1
        self._runs *= self._compared == token_id
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token_id
        may_end = self._num_tokens >= self._min_tokens
        self._num_tokens += 1
        self.found = may_end and bool((self._runs >= self._needed).any())
        return self.found

    def _take(self, output: npt.NDArray[np.int32], sizes: npt.NDArray[np.int64], min_count: int) -> None:
        """Come to where push() of every token leads; a run beyond what is needed may be counted short."""
        for i, size in enumerate(sizes.tolist()):
            end = output[-size * min_count :]
            breaks = np.flatnonzero(end[size:] != end[:-size])
            last_break = int(breaks[-1]) + 1 if len(breaks) else 0
            self._runs[i] = max(0, len(end) - size - last_break)
        newest_first = output[: -len(self._recent) - 1 : -1]
        self._recent[: len(newest_first)] = newest_first
        self._num_tokens = len(output)
        self.found = self._num_tokens > self._min_tokens and bool((self._runs >= self._needed).any())

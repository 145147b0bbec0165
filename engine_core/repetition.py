"""Whether an output goes round in a loop: its last tokens are one pattern, several times in a row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine_core.sampling_params import RepetitionDetection

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
        self, detection: RepetitionDetection, min_tokens: int = 0, output: Iterable[int] = ()
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
        for token_id in output:
            self.push(token_id)

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

"""What repetition detection has to find, by trying every pattern at every token."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.sequence_sampling import RepetitionDetection


def ends_in_loop(output: Sequence[int], detection: RepetitionDetection) -> bool:
    """Whether the last tokens are one pattern, min_count times in a row."""
    for size in range(detection.min_pattern_size, detection.max_pattern_size + 1):
        pattern = list(output[-size:])
        if list(output[-size * detection.min_count :]) == pattern * detection.min_count:
            return True
    return False


def cut_at_loop(output: list[int], detection: RepetitionDetection, min_tokens: int) -> list[int]:
    """The output up to the token that completes the first loop; no token below min_tokens can."""
    for end in range(min_tokens + 1, len(output) + 1):
        if ends_in_loop(output[:end], detection):
            return output[:end]
    return output

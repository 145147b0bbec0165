"""Which engine takes which prompt of a request: the least busy one at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def spread(num_open: Sequence[int], widths: Sequence[int]) -> list[list[int]]:
    """Share prompts out, in order, each to the engine with the fewest sequences by then; the first of equals.

    Args:
        num_open: sequences open on each engine; at least one engine.
        widths: sequences of each prompt.

    Returns:
        The indices of the prompts for each engine.
    """
    parts: list[list[int]] = [[] for _ in num_open]
    busy = [(count, engine) for engine, count in enumerate(num_open)]
    heapq.heapify(busy)
    for prompt, width in enumerate(widths):
        count, engine = busy[0]
        parts[engine].append(prompt)
        heapq.heapreplace(busy, (count + width, engine))
    return parts

"""Which engine takes which prompt of a request? Each prompt goes to the least busy one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def spread(num_open: Sequence[int], widths: Sequence[int]) -> list[list[int]]:
    """Assign prompts in order, each to the engine with the fewest sequences by then; ties go to the first.

    Args:
        num_open: open sequences of each engine; at least one engine.
        widths: number of sequences of each prompt.

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

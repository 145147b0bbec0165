"""Work that grows with a conversation: here while it is small, or else in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Up to this size, compressing or decoding takes a fraction of a millisecond.
INLINE_BYTES = 16 * 1024
# One at a time: decoding holds the GIL, so several threads would compete with the event loop.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="responses")


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Return what some work returns.

    Args:
        num_bytes: that it has to do with.
        work: may run on another thread.
    """
    if num_bytes <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)

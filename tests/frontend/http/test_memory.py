"""Memory is given back once after large requests."""

from __future__ import annotations

import asyncio

from splitserve.frontend.http.memory import LARGE_BYTES, MemoryReturn, find_trim


async def test_memory_is_given_back_once_for_several_large_requests_and_again_for_later_ones() -> None:
    loop, trimmed = asyncio.get_running_loop(), asyncio.Queue[None]()
    memory = MemoryReturn(lambda: loop.call_soon_threadsafe(trimmed.put_nowait, None), delay_s=0.0)
    for _ in range(2):
        for _ in range(3):
            memory.note(LARGE_BYTES)
        await trimmed.get()
    assert trimmed.empty()


async def test_small_requests_give_nothing_back() -> None:
    memory = MemoryReturn(lambda: None, delay_s=0.0)
    memory.note(LARGE_BYTES - 1)
    assert not memory._due


def test_the_c_library_is_asked_in_its_own_way() -> None:
    assert find_trim()() in (0, 1, None), "what glibc returns, or nothing without it"

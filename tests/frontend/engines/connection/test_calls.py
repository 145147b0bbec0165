"""Calls that wait for one engine: answered by number, bounded, and ended with the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import CallResult, Draining
from splitserve.frontend.engines.connection.calls import MAX_CALLS, PendingCalls
from tests.frontend.engines.fake_engine import DEADLINE_S
from tests.frontend.engines.messages import pong


async def begun(calls: PendingCalls, *numbers: int) -> list[asyncio.Task[Any]]:
    """Calls whose answer is waited for."""
    tasks = [asyncio.create_task(calls.answer(number, DEADLINE_S)) for number in numbers]
    await asyncio.sleep(0)
    return tasks


async def test_each_answer_goes_to_the_call_of_its_number() -> None:
    calls = PendingCalls("ipc:///e")
    ping, call, other = await begun(calls, 1, 2, 3)
    for message in (CallResult(2, True, "", []), Draining(1.0), pong(nonce=7), pong(nonce=1)):
        calls.settle(message)
    assert await call == CallResult(2, True, "", [])
    assert await ping == pong(nonce=1)
    assert not other.done()
    calls.close()
    await asyncio.gather(other, return_exceptions=True)


async def test_no_more_calls_wait_than_there_is_room_for() -> None:
    calls = PendingCalls("ipc:///e")
    tasks = await begun(calls, *range(MAX_CALLS))
    with pytest.raises(EngineUnavailableError, match=str(MAX_CALLS)):
        calls.check_room()
    calls.settle(pong(nonce=0))
    await tasks[0]
    calls.check_room()
    calls.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_engine_that_does_not_answer_in_time_is_named() -> None:
    with pytest.raises(EngineUnavailableError, match="ipc:///e did not answer within 0 s"):
        await PendingCalls("ipc:///e").answer(1, 0.0)


async def test_a_lost_engine_ends_all_that_wait_and_later_calls_may_wait_again() -> None:
    calls = PendingCalls("ipc:///e")
    tasks = await begun(calls, 1, 2)
    calls.fail("the engine was lost")
    for task in tasks:
        with pytest.raises(EngineUnavailableError, match="was lost"):
            await task
    (task,) = await begun(calls, 3)
    calls.settle(pong(nonce=3))
    assert await task == pong(nonce=3)


async def test_a_close_ends_all_that_wait_and_lets_nobody_call() -> None:
    calls = PendingCalls("ipc:///e")
    (task,) = await begun(calls, 1)
    calls.close()
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        await task
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        calls.check_room()

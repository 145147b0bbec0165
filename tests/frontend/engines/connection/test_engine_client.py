"""How frames move between socket and session: what is read when, and which wake-ups must not be lost."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import pytest
import zmq

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.messages import AddRequest, Call, CallKind, Ping
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.engine_socket import MAX_FRAMES_PER_WAKEUP, EngineSocket
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.engines.conftest import MakePool
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine
from tests.frontend.engines.messages import end, outputs, ready, tokens


async def generate(pool: EnginePool, num_tokens: int) -> list[int]:
    request = GenerationRequest("r", [40, 41], SamplingParams(max_tokens=num_tokens, seed=1))
    async with asyncio.timeout(DEADLINE_S):
        return [token async for delta in pool.generate("m", request) for token in delta.token_ids]


async def test_what_an_engine_sent_before_its_end_is_taken(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    num_tokens = 5 * MAX_FRAMES_PER_WAKEUP
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(generate(pool, num_tokens))
        handle = (await engine.receive(AddRequest)).handle
        wire: zmq.Socket[bytes] = zmq.Socket.shadow(engine._socket)
        # Nobody reads meanwhile, as in a process that stands still for a moment.
        for index in range(num_tokens - 1):
            wire.send_multipart([engine.identity, encode(tokens(handle, [50], index))])
        wire.send_multipart([engine.identity, encode(outputs([(handle, 50, num_tokens - 1)], [end(handle)]))])
        wire.close(linger=10_000)
        time.sleep(0.3)
        assert await task == [50] * num_tokens


async def test_a_new_life_is_noticed_even_if_no_other_state_was_seen_between(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        engine.epoch = 2
        await engine.send(ready(2, model=model))
        async with asyncio.timeout(DEADLINE_S):
            while pool.status()[0].epoch != 2:
                await asyncio.sleep(0.001)
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(generate(pool, 1))
        handle = (await engine.receive(AddRequest)).handle
        await engine.send(outputs([(handle, 50, 0)], [end(handle)], epoch=2))
        assert await task == [50]


class FullSocket:
    """Has no room; while a send finds that out, something arrives, and its signal is taken with it."""

    def __init__(self) -> None:
        self.has_input = False

    def send(self, frame: bytes, flags: int) -> None:
        self.has_input = True
        raise zmq.Again

    def getsockopt(self, option: int) -> int:
        return zmq.POLLIN if self.has_input else 0


async def test_a_send_that_finds_no_room_looks_for_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = EngineSocket(zmq.Context.instance(), "ipc://nowhere")
    socket._loop = asyncio.get_running_loop()
    socket._socket = FullSocket()  # type: ignore[assignment]
    taken = asyncio.Event()
    monkeypatch.setattr(socket, "_on_readable", taken.set)
    socket.send(deque([Ping(1)]))
    async with asyncio.timeout(DEADLINE_S):
        assert await taken.wait()


async def test_who_waits_for_an_answer_while_the_client_closes_hears_why(
    addresses: list[str], model: ModelInfo
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = EngineClient(context, EngineSession("f", "0", addresses[0]))
    async with FakeEngine(addresses[0], model) as engine:
        engine.answers_calls = False
        client.start()
        question = asyncio.create_task(client.call(Call(0, CallKind.EXPLAIN_REQUESTS), DEADLINE_S))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await question
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await client.call(Call(0, CallKind.EXPLAIN_REQUESTS), DEADLINE_S)
    context.term()


async def test_a_ping_ends_when_the_engine_is_lost(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0])
    async with FakeEngine(addresses[0], model):
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(pool.ping(10 * DEADLINE_S))
        await asyncio.sleep(0)
    with pytest.raises(EngineUnavailableError):
        async with asyncio.timeout(DEADLINE_S):
            await task

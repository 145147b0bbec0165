"""How many requests begin per turn of the loop when many arrive at once, and in which order."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from urllib.parse import urlsplit

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.http.turn_gate import PER_TURN, TurnGate
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of

BURST = 120
BODY = b'{"prompt":"x"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
HEAD += b"content-length: %d\r\n\r\n" % len(BODY)


class Turns:
    """Counts the turns of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def pass_gate(gate: TurnGate, note: Callable[[], object]) -> None:
    await gate.enter()
    note()


async def test_each_turn_lets_so_many_pass_and_in_the_order_of_coming() -> None:
    gate, turns = TurnGate(), Turns()
    passed: list[tuple[int, int]] = []

    def note(i: int) -> None:
        passed.append((i, turns.number))

    async with asyncio.TaskGroup() as group:
        for i in range(5 * PER_TURN):
            group.create_task(pass_gate(gate, functools.partial(note, i)))
    turns.stop()
    assert [i for i, _ in passed] == list(range(5 * PER_TURN))
    per_turn = Counter(turn for _, turn in passed)
    assert set(per_turn.values()) == {PER_TURN}


async def test_nobody_waits_at_a_gate_that_has_room() -> None:
    gate = TurnGate()
    for _ in range(3):
        for _ in range(PER_TURN):
            with pytest.raises(StopIteration):
                gate.enter().send(None)
        first = gate.turn
        await asyncio.sleep(0)
        assert gate.turn == first + 1


async def test_who_comes_later_does_not_overtake_the_queue() -> None:
    gate = TurnGate()
    passed: list[int] = []
    notes = [functools.partial(passed.append, i) for i in range(3 * PER_TURN)]
    early = [asyncio.create_task(pass_gate(gate, note)) for note in notes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(passed) < len(early)
    await pass_gate(gate, lambda: passed.append(-1))
    await asyncio.gather(*early)
    assert passed[-1] == -1


async def test_who_is_cancelled_takes_no_place() -> None:
    gate = TurnGate()
    passed: list[int] = []
    notes = [functools.partial(passed.append, i) for i in range(3 * PER_TURN)]
    tasks = [asyncio.create_task(pass_gate(gate, note)) for note in notes]
    await asyncio.sleep(0)
    for task in tasks[PER_TURN : 2 * PER_TURN]:
        task.cancel()
    turn = gate.turn
    await asyncio.wait(tasks)
    assert passed == [*range(PER_TURN), *range(2 * PER_TURN, 3 * PER_TURN)]
    assert gate.turn - turn <= 2


async def begun_per_turn(make_server: ServerFactory, pool: FakePool, *, body_later: bool) -> Counter[int]:
    """Send a burst of whole requests, or first all heads and then all bodies; count starts per turn."""
    begun: Counter[int] = Counter()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for delta in deltas_of("hi", request):
            yield delta

    pool.script = script
    target = urlsplit(await make_server())
    links = [await asyncio.open_connection(target.hostname, target.port) for _ in range(BURST)]
    turns, make = Turns(), pool.open

    async def counted_open(
        model: str, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        begun[turns.number] += 1
        return await make(model, requests, on_ready)

    pool.open = counted_open  # type: ignore[method-assign]
    for _, writer in links:
        writer.write(HEAD if body_later else HEAD + BODY)
    if body_later:
        for _ in range(BURST):
            await asyncio.sleep(0)
        for _, writer in links:
            writer.write(BODY)
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(reader.read() for reader, _ in links))
    turns.stop()
    assert all(answer.startswith(b"HTTP/1.1 200 ") and b'"text":"hi"' in answer for answer in answers)
    for _, writer in links:
        writer.close()
    return begun


@pytest.mark.parametrize("body_later", [False, True], ids=["whole", "body later"])
async def test_a_burst_of_requests_is_taken_in_over_many_turns(
    make_server: ServerFactory, pool: FakePool, body_later: bool
) -> None:
    begun = await begun_per_turn(make_server, pool, body_later=body_later)
    assert sum(begun.values()) == BURST
    # What runs between two counts is the end of one turn and the beginning of the next.
    assert max(begun.values()) <= 2 * PER_TURN

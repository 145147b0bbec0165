"""Bodies on their way: they keep nobody out, and who holds most of them loses its own first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from splitserve.frontend.http.body_budget import ArrivingBody, BodyBudget
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.limits import LimitsMiddleware
from tests.frontend.http.app_fixtures import ServerFactory

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


class Bodies:
    """Bodies of a budget of 100 bytes."""

    def __init__(self) -> None:
        self.budget = BodyBudget(100)
        self.given_up: list[str] = []

    def make(self, name: str, address: str, num_bytes: int) -> ArrivingBody:
        body = ArrivingBody(address, lambda: self.given_up.append(name))
        self.budget.add(body, num_bytes)
        return body


def test_the_oldest_unfinished_body_of_the_largest_holder_is_given_up() -> None:
    bodies = Bodies()
    bodies.make("other", "b", 30)
    bodies.make("first", "a", 20)
    second = bodies.make("second", "a", 40)
    assert (bodies.given_up, bodies.budget.num_bytes) == ([], 90)
    bodies.make("third", "c", 20)
    assert (bodies.given_up, bodies.budget.num_bytes) == (["first"], 90)
    bodies.budget.add(second, 5)
    bodies.make("fourth", "c", 10)
    assert (bodies.given_up, bodies.budget.num_bytes) == (["first", "second"], 60)


def test_a_body_that_holds_most_by_itself_is_refused() -> None:
    bodies = Bodies()
    body = bodies.make("large", "a", 90)
    bodies.make("small", "b", 5)
    with pytest.raises(HttpError) as caught:
        bodies.budget.add(body, 10)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    assert (bodies.given_up, bodies.budget.num_bytes) == ([], 5)


def test_a_complete_body_stays_whoever_comes() -> None:
    bodies = Bodies()
    complete = bodies.make("complete", "a", 90)
    bodies.budget.complete(complete)
    with pytest.raises(HttpError):
        bodies.make("late", "b", 20)
    assert (bodies.given_up, bodies.budget.num_bytes) == ([], 90)
    bodies.budget.leave(complete)
    bodies.make("later", "b", 20)
    assert bodies.budget.num_bytes == 20


def test_what_is_given_back_is_given_back_once_and_leaves_no_trace() -> None:
    bodies = Bodies()
    body = bodies.make("a", "a", 50)
    bodies.budget.leave(body)
    bodies.budget.leave(body)
    assert (bodies.budget.num_bytes, bodies.budget._unfinished) == (0, {})


@contextlib.asynccontextmanager
async def sending(url: str, size: int, *pieces: bytes) -> AsyncGenerator[asyncio.StreamReader, None]:
    """A connection on which the beginning of a body of this size was sent."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        writer.write(HEAD % size + b"".join(pieces))
        await writer.drain()
        yield reader
    finally:
        writer.close()


async def test_heads_without_bodies_take_no_places(make_server: ServerFactory) -> None:
    url = await make_server(max_open_requests=2)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(30), httpx.AsyncClient() as client:
        for _ in range(20):
            await stack.enter_async_context(sending(url, 100, b"{"))
        for _ in range(3):
            answer = await client.post(f"{url}/v1/completions", json={"prompt": "x"})
            assert answer.status_code == 200


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[BodyBudget]:
    """The budgets of the servers that a test starts."""
    made: list[BodyBudget] = []
    init = LimitsMiddleware.__init__

    def remember(self: LimitsMiddleware, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        made.append(self._budget)

    monkeypatch.setattr(LimitsMiddleware, "__init__", remember)
    return made


async def test_unfinished_bodies_are_given_up_for_those_that_arrive(
    make_server: ServerFactory, budgets: list[BodyBudget]
) -> None:
    url = await make_server(max_body_bytes=2**20, max_body_memory_bytes=2**20)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(30):
        readers = []
        for i in range(4):
            part = b" " * (300 * 1024)
            readers.append(await stack.enter_async_context(sending(url, 2**20, part)))
            if i < 3:
                while budgets[0].num_bytes < (i + 1) * len(part):
                    await asyncio.sleep(0)
        # Three find room; the first makes room for the fourth.
        assert (await readers[0].readline()).startswith(b"HTTP/1.1 429 ")
        while budgets[0].num_bytes < 3 * len(part):
            await asyncio.sleep(0)
        client = await stack.enter_async_context(httpx.AsyncClient())
        large = {"prompt": "x", "unknown": " " * (500 * 1024)}
        answer = await client.post(f"{url}/v1/completions", json=large)
        assert answer.status_code == 200
    while budgets[0].num_bytes:
        await asyncio.sleep(0)


async def test_a_body_is_let_go_when_it_is_decoded(
    make_server: ServerFactory, budgets: list[BodyBudget]
) -> None:
    url = await make_server()
    async with httpx.AsyncClient() as client:
        body = {"prompt": "x", "stream": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            await anext(answer.aiter_bytes())
            assert budgets[0].num_bytes == 0

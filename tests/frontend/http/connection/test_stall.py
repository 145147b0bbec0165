"""Clients that do not read: the request is aborted, the connection cut, and nothing piles up meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.http.limits import EndReason, InFlightRequest, InFlightRequests
from tests.frontend.http.app_fixtures import ServerFactory, serving
from tests.frontend.http.fake_pool import FakePool


class Flood:
    """A script that yields as fast as it is asked, for ever, and counts."""

    def __init__(self) -> None:
        self.num_bytes = 0

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        while True:
            self.num_bytes += 10_000
            yield OutputDelta(0, "x" * 10_000, [1])
            await asyncio.sleep(0)


async def open_and_never_read(url: str) -> socket.socket:
    """Send a streaming request from a socket with a tiny buffer, and read nothing."""
    target = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (target.hostname, target.port))
    body = b'{"prompt":"x","stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    await loop.sock_sendall(client, head + b"content-length: %d\r\n\r\n" % len(body) + body)
    return client


async def test_a_client_that_does_not_read_is_cut_and_its_generation_closed(
    make_server: ServerFactory, pool: FakePool
) -> None:
    pool.script = flood = Flood()
    client = await open_and_never_read(await make_server(write_stall_s=0.2))
    async with asyncio.timeout(30):
        await pool.num_closed.wait()
        # Kernel buffers take some megabytes on loopback; our own share of them stays below one.
        assert flood.num_bytes < 16 * 2**20
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(client, 2**20):
                pass
    client.close()


async def test_the_time_of_a_reader_that_is_slow_but_steady_begins_anew(pool: FakePool) -> None:
    """Read in the limit's own terms, as a real one of any length may pass while this process stands still."""
    limit_s = 3600.0
    pool.script = Flood()
    async with serving(pool, write_stall_s=limit_s) as (url, server), asyncio.timeout(30):
        requests = server._owners.requests
        with await open_and_never_read(url) as client:
            begun_s = await blocked_since(requests)
            for _ in range(3):
                later_s = begun_s
                while later_s <= begun_s:
                    assert await asyncio.get_running_loop().sock_recv(client, 2**20)
                    later_s = await blocked_since(requests)
                assert requests.end_stalled(now=begun_s + limit_s) == 0
                begun_s = later_s
            assert not pool.closed
            assert requests.end_stalled(now=begun_s + limit_s + 1) == 1
            await pool.num_closed.wait()


async def blocked_since(requests: InFlightRequests) -> float:
    """Wait until the only request's client has not read enough; return since when."""
    while True:
        for request in requests._open:
            if request.blocked_since is not None:
                return request.blocked_since
        await asyncio.sleep(0)


async def test_only_requests_blocked_past_the_limit_are_ended() -> None:
    requests = InFlightRequests(max_open=3, write_stall_s=20)
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    entries = [
        InFlightRequest(task, blocked_since=since)
        for task, since in zip(tasks, (None, 5.0, 1.0), strict=True)
    ]
    requests._open.update(entries)
    assert requests.end_stalled(now=22.0) == 1
    await asyncio.gather(*tasks[2:], return_exceptions=True)
    assert [task.done() for task in tasks] == [False, False, True]
    assert entries[2].end_reason is EndReason.STALLED
    for task in tasks:
        task.cancel()


async def test_many_requests_are_ended_one_per_turn() -> None:
    requests = InFlightRequests(max_open=8, write_stall_s=20)
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(8)]
    requests._open.update(InFlightRequest(task) for task in tasks)
    requests.end_all(EndReason.SHUTDOWN)
    ended = [0]
    while ended[-1] < 8:
        await asyncio.sleep(0)
        ended.append(sum(task.done() for task in tasks))
    assert max(after - before for before, after in itertools.pairwise(ended)) == 1


async def test_open_requests_are_bounded() -> None:
    requests = InFlightRequests(max_open=1, write_stall_s=20)
    first, second = requests.arrive(), requests.arrive()
    assert len(requests) == 0, "they have no place before they are complete"
    requests.enter(first)
    with pytest.raises(HttpError) as caught:
        requests.enter(second)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    requests.leave(first)
    requests.enter(second)
    assert len(requests) == 1


async def test_a_request_whose_body_is_on_its_way_ends_with_the_process() -> None:
    requests = InFlightRequests(max_open=1, write_stall_s=20)
    arriving: list[InFlightRequest] = []

    async def run() -> None:
        arriving.append(requests.arrive())
        await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    requests.end_all(EndReason.SHUTDOWN)
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), arriving[0].end_reason) == (True, EndReason.SHUTDOWN)

"""The clients of one process: what they send, keep, hang up and leave unread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.load.client import Clients, drop_what_comes
from benchmarks.load.plan import Ask, End, Plan, Reader

EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
DONE = b"data: [DONE]\n\n"
LIMIT_S = 60.0


@contextmanager
def answering(*answers: bytes, close: bool = True) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives each connection the next answer; yields its port and the requests it got."""
    requests: list[bytes] = []
    open_: list[socket.socket] = []

    def serve() -> None:
        for answer in answers:
            client, _ = listener.accept()
            requests.append(client.recv(65536))
            client.sendall(answer)
            client.close() if close else open_.append(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], requests
        thread.join()
    for client in open_:
        client.close()


def plan(*asks: Ask, again_s: float = 0.0) -> Plan:
    return Plan("p", time.time(), [{"prompt": "x"}], ["a"], list(asks), again_s)


def run(clients: Clients) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not clients.is_done:
        clients.turn()
        assert time.monotonic() < until_s


def test_streams_are_read_to_their_ends_and_named() -> None:
    with answering(HEAD + EVENT + DONE, HEAD + EVENT) as (port, requests):
        clients = Clients(plan(Ask(0.0, port, 0), Ask(0.0, port, 0)))
        run(clients)
    assert sorted(seen.end for seen in clients.seen) == [End.WHOLE, End.BROKEN]
    assert {seen.request_id for seen in clients.seen} == {"p-0", "p-1"}
    assert b"X-Request-Id: p-0" in requests[0]


def test_bytes_have_the_time_at_which_they_came_and_not_at_which_they_were_read() -> None:
    with answering(HEAD + EVENT + DONE, close=False) as (port, _):
        clients = Clients(plan(Ask(0.0, port, 0)))
        before_s = time.time()
        clients.turn()
        clients.turn()
        # Whenever it is read now: the kernel has noted when it came.
        while not clients.is_done and not clients._logs[next(iter(clients._logs))].arrivals:
            clients.turn()
        clients.close()
    assert before_s <= clients.seen[0].times_s[0] <= time.time()


def test_a_request_is_sent_when_its_bytes_are_and_not_when_the_client_began_to_connect() -> None:
    with answering(HEAD + EVENT + DONE) as (port, _):
        ask = Ask(0.0, port, 0)
        clients = Clients(plan())
        clients._send(ask)
        connecting_s = time.time()
        run(clients)
    assert connecting_s <= clients.seen[0].sent_s <= clients.seen[0].times_s[0]


def test_a_client_hangs_up_when_it_was_to() -> None:
    with answering(HEAD + EVENT, close=False) as (port, _):
        clients = Clients(plan(Ask(0.0, port, 0, hang_up_s=0.05)))
        run(clients)
    assert clients.seen[0].end is End.HUNG_UP


def test_nobody_listens() -> None:
    # Bound, so that nobody else gets the port.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        clients = Clients(plan(Ask(0.0, silent.getsockname()[1], 0)))
        run(clients)
    assert (clients.seen[0].end, clients.seen[0].status) == (End.BROKEN, 0)


def test_a_stream_is_followed_by_another_until_the_time_is_over() -> None:
    with answering(*[HEAD + EVENT + DONE] * 3) as (port, requests):
        clients = Clients(plan(Ask(0.0, port, 0), again_s=1e6))
        until_s = time.monotonic() + LIMIT_S
        while len(clients.seen) < 3:
            clients.turn()
            assert time.monotonic() < until_s
        clients.close()
    assert len(requests) == 3


def test_what_is_still_open_at_the_end_is_open() -> None:
    with answering(HEAD + EVENT, HEAD + EVENT, close=False) as (port, requests):
        clients = Clients(plan(Ask(0.0, port, 0), Ask(0.0, port, 0, Reader.SLOW)))
        until_s = time.monotonic() + LIMIT_S
        while len(requests) < 2:
            clients.turn()
            assert time.monotonic() < until_s
        clients.close()
    assert [seen.end for seen in clients.seen] == [End.OPEN, End.OPEN]


def test_a_connection_whose_packets_are_dropped_hears_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        drop_what_comes(client)
        server.send(b"lost")
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(10)
        client.close()
        server.close()

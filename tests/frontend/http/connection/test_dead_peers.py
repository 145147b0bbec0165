"""A client whose machine is gone without a word is noticed by what it does not acknowledge."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import AsyncGenerator

import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.connection.dead_peers import end_dead_connections
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.connection.test_stall import open_and_never_read
from tests.frontend.http.fake_pool import FakePool

SO_ATTACH_FILTER = 26


def drop_what_comes(client: socket.socket) -> None:
    """Let the kernel drop every packet for a connection: a BPF program that keeps nothing of any."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


@pytest.mark.skipif(sys.platform != "linux", reason="the filter and the timeout are Linux's")
async def test_a_client_that_vanishes_is_noticed_though_little_was_sent_to_it(
    make_server: ServerFactory, pool: FakePool
) -> None:
    is_gone = asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "before", [1])
        await is_gone.wait()
        yield OutputDelta(0, "after", [1])
        await asyncio.Event().wait()

    pool.script = script
    client = await open_and_never_read(await make_server(write_stall_s=0.5))
    async with asyncio.timeout(60):
        while b"before" not in await asyncio.get_running_loop().sock_recv(client, 65536):
            pass
        drop_what_comes(client)
        is_gone.set()
        await pool.num_closed.wait()
    assert client.fileno() >= 0, "it was the server that ended the connection"
    client.close()


def test_a_unix_socket_needs_nothing() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        end_dead_connections(listener, 1.0)
        assert not listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_connections_inherit_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        end_dead_connections(listener, 1.5)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if sys.platform == "linux":
                    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500

"""How do messages get from process to process? The engine's ROUTER, a peer's DEALER, non-blocking sends."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import zmq

from splitserve.engine_core.errors import ConfigError, ProtocolError
from splitserve.engine_core.ipc.addresses import check_keys, is_ipc
from splitserve.engine_core.ipc.curve import ClientKeys, ServerKeys
from splitserve.engine_core.ipc.sockets import BoundSocket, SocketLimits, set_limits

MAX_MESSAGE_BYTES = 64 * 2**20
# Messages queued inside libzmq per peer; small, because our own outbox counts bytes and libzmq cannot.
SEND_HWM = 64
CLIENT_HWM = 1024
# Workers are our own processes, and send at most one message for each one they receive.
WORKER_LIMITS = SocketLimits(MAX_MESSAGE_BYTES, SEND_HWM, max_connections=128)

# For a message whose connection libzmq does not report, as its peer speaks a ZMTP older than 3.0.
NO_DESCRIPTOR = -1

# Longer messages are read in place, from libzmq's buffer.
_MAX_COPIED_BYTES = 4096
Content = bytes | memoryview

S = TypeVar("S", bound=zmq.Socket)


class SendResult(enum.Enum):
    """Outcome of a non-blocking send: queued, the peer's queue is full for now, or the peer is gone."""

    SENT = 0
    FULL = 1
    GONE = 2


def try_send(router: zmq.Socket[bytes], frames: Sequence[bytes]) -> SendResult:
    """Send without blocking through a ROUTER that reports unroutable peers; the identity comes first."""
    try:
        router.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return SendResult.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return SendResult.GONE
        raise
    return SendResult.SENT


def try_receive(router: zmq.Socket[bytes]) -> tuple[bytes, list[Content], int] | None:
    """Receive through a ROUTER without blocking.

    Returns:
        The peer's identity, the frames, and the descriptor of the connection; None if nothing has arrived.
    """
    try:
        identity = router.recv(zmq.NOBLOCK)
    except zmq.Again:
        return None
    # Reading frame by frame costs a third less than recv_multipart(), and a Frame knows its connection.
    frame = router.recv(zmq.NOBLOCK, copy=False)
    frames = [_content_of(frame)]
    descriptor = _source_of(frame)
    while frame.more:
        frame = router.recv(zmq.NOBLOCK, copy=False)
        frames.append(_content_of(frame))
    return identity, frames, descriptor


def _content_of(frame: zmq.Frame) -> Content:
    return frame.buffer if len(frame) > _MAX_COPIED_BYTES else frame.bytes


def _source_of(frame: zmq.Frame) -> int:
    try:
        return frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return NO_DESCRIPTOR


class Received(NamedTuple):
    """A message that has arrived.

    Attributes:
        identity: of the peer.
        frame: its only frame, or what is wrong with the message.
        descriptor: of the connection it arrived on.
    """

    identity: bytes
    frame: Content | ProtocolError
    descriptor: int


class BoundRouter:
    """A bound ROUTER and the files that go with it; used by one thread.

    Sends to unknown or full peers are reported instead of dropped silently. A new peer takes over the
    identity of a live one, whose connection then has to end: else libzmq would keep the new one but never
    read from it, while its messages pile up. So identities should be random: whoever knows one can claim it.
    """

    def __init__(
        self,
        context: zmq.Context,
        address: str,
        keys: ServerKeys | None = None,
        *,
        allow_insecure_tcp: bool = False,
        limits: SocketLimits = WORKER_LIMITS,
    ) -> None:
        """Bind.

        Raises:
            ConfigError: the address is in use, not allowed without keys, or its directory is not private.
        """
        self._bound = BoundSocket(
            context, zmq.ROUTER, address, limits, keys, allow_insecure_tcp=allow_insecure_tcp
        )
        self.socket = self._bound.socket
        self.connections = self._bound.connections

    @property
    def address(self) -> str:
        """The bound address; if port 0 was asked for, with the port that was chosen."""
        return self._bound.address

    def receive(self, limit: int | None = None) -> Iterator[Received]:
        """Yield the waiting messages, at most `limit`, without blocking.

        A message of more than one frame yields a ProtocolError in place of the frame.
        """
        for _ in itertools.repeat(None) if limit is None else range(limit):
            message = try_receive(self.socket)
            if message is None:
                return
            identity, frames, descriptor = message
            self.connections.heard(descriptor)
            if len(frames) == 1:
                yield Received(identity, frames[0], descriptor)
            else:
                error = ProtocolError(f"expected a message of one frame, got {len(frames)}")
                yield Received(identity, error, descriptor)

    def send(self, identity: bytes, frame: bytes) -> SendResult:
        """Send one frame without blocking."""
        return try_send(self.socket, (identity, frame))

    def look_after(self, now_s: float, is_known: Callable[[bytes], bool] = lambda identity: True) -> bool:
        """Process what happened to the connections; see BoundSocket.look_after()."""
        return self._bound.look_after(now_s, is_known)

    def close(self, linger_ms: int = 0) -> None:
        """Close; see BoundSocket.close()."""
        self._bound.close(linger_ms)


def connect_engine(
    context: zmq.Context[S],
    address: str,
    identity: bytes,
    keys: ClientKeys | None = None,
    *,
    allow_insecure_tcp: bool = False,
    retry_max_ms: int = 500,
) -> S:
    """Connect a DEALER to an engine-core; works with zmq.Context and zmq.asyncio.Context alike.

    The engine need not run yet: libzmq keeps trying, and queues up to 1024 messages meanwhile, after which a
    non-blocking send raises zmq.Again. What was queued for an engine that died reaches its successor, which
    ignores it unless a Hello was queued before it; then an Abort has to follow. (ZMQ_IMMEDIATE would avoid
    the queue, but it also discards the last messages of a stopping engine that we have not read yet:
    measured, a drained engine's last tokens were lost.)

    Args:
        context: a zmq.Context or a zmq.asyncio.Context; the socket is of its kind.
        address: of the engine, ipc://PATH or tcp://HOST:PORT.
        identity: 1 to 255 bytes, not starting with a zero byte, unique among all connections: use random
            bytes for each one, as the engine does not hand over an identity whose owner may still be alive.
        keys: needed for TCP beyond loopback; unused on ipc.
        allow_insecure_tcp: permit TCP beyond loopback without keys.
        retry_max_ms: longest pause between two attempts to connect.

    Raises:
        ConfigError: the address needs keys, or libzmq refuses it.
    """
    check_keys(address, keys is not None, allow_insecure_tcp)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, identity)
    dealer.setsockopt(zmq.RECONNECT_IVL, 20)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, retry_max_ms)
    set_limits(dealer, address, SocketLimits(MAX_MESSAGE_BYTES, CLIENT_HWM, CLIENT_HWM))
    if keys is not None and not is_ipc(address):
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
    try:
        dealer.connect(address)
    except zmq.ZMQError as error:
        dealer.close(linger=0)
        raise ConfigError(f"cannot connect to {address}: {error}") from None
    return dealer

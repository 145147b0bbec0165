"""The sockets of both links: the engine's ROUTER, a peer's DEALER, and what a non-blocking send can meet."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import zmq

from engine_core.errors import ConfigError, ProtocolError
from engine_core.ipc.addresses import check_keys, is_ipc
from engine_core.ipc.curve import ClientKeys, ServerKeys
from engine_core.ipc.sockets import BoundSocket, SocketLimits, set_limits

MAX_MESSAGE_BYTES = 64 * 2**20
# Messages queued inside libzmq per peer; small, because our own outbox counts bytes and libzmq cannot.
SEND_HWM = 64
# No bound: libzmq stops to read a connection whose queue is full. If the peer ends then, what it has sent and
# the kernel still holds is lost (a worker's last words), and a ZMTP command at the wrong moment aborts us.
RECEIVE_HWM = 0
CLIENT_HWM = 1024

S = TypeVar("S", bound=zmq.Socket)


class SendResult(enum.Enum):
    """What became of a non-blocking send: queued, no room at the peer for now, or the peer is gone."""

    SENT = 0
    FULL = 1
    GONE = 2


def try_send(router: zmq.Socket[bytes], frames: Sequence[bytes]) -> SendResult:
    """Send through a ROUTER that reports peers it cannot route to, without blocking; the peer comes first."""
    try:
        router.send_multipart(frames, zmq.NOBLOCK)
    except zmq.Again:
        return SendResult.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return SendResult.GONE
        raise
    return SendResult.SENT


class BoundRouter:
    """A bound ROUTER and the files that go with it; used by one thread.

    Unknown and full peers are reported instead of dropped silently, and a newcomer never takes over the
    identity of a live peer.
    """

    def __init__(
        self,
        context: zmq.Context,
        address: str,
        keys: ServerKeys | None = None,
        *,
        allow_insecure_tcp: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Bind.

        Raises:
            ConfigError: the address is in use, not allowed without keys, or its directory is not private.
        """
        limits = SocketLimits(max_message_bytes, SEND_HWM, RECEIVE_HWM)
        self._bound = BoundSocket(
            context, zmq.ROUTER, address, limits, keys, allow_insecure_tcp=allow_insecure_tcp
        )
        self.socket = self._bound.socket
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    @property
    def address(self) -> str:
        """The address bound, with the port that was chosen when port 0 was asked for."""
        return self._bound.address

    def receive(self, limit: int | None = None) -> Iterator[tuple[bytes, bytes | ProtocolError]]:
        """Yield at most `limit` waiting messages as (identity, frame) without blocking.

        A message of more than one frame comes as a ProtocolError in place of its frame.
        """
        for _ in itertools.repeat(None) if limit is None else range(limit):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2:
                yield parts[0], parts[1]
            else:
                yield parts[0], ProtocolError(f"a message has one frame, this one has {len(parts) - 1}")

    def send(self, identity: bytes, frame: bytes) -> SendResult:
        """Send one frame without blocking."""
        return try_send(self.socket, (identity, frame))

    def watch_disconnects(self) -> zmq.Socket[bytes]:
        """Return a socket that gets readable when a connection ended; which one, libzmq does not tell."""
        monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        return monitor

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
) -> S:
    """Connect a DEALER to an engine-core; works with zmq.Context and zmq.asyncio.Context alike.

    The engine need not run yet: libzmq keeps trying, and queues up to 1024 messages meanwhile, after which a
    non-blocking send raises zmq.Again. What was queued for an engine that died reaches its successor, which
    ignores it because it comes before a Hello. (ZMQ_IMMEDIATE would not queue, but it also throws away what
    an ending engine sent last and we have not read yet: measured, a drained engine's last tokens were lost.)

    Args:
        context: a zmq.Context or a zmq.asyncio.Context; the socket is of its kind.
        address: of the engine, ipc://PATH or tcp://HOST:PORT.
        identity: 1 to 255 bytes, not starting with a zero byte, unlike any other connection's: take random
            bytes per connection, for the engine does not hand an identity over while its owner may live.
        keys: needed for TCP beyond loopback; unused on ipc.
        allow_insecure_tcp: permit TCP beyond loopback without keys.

    Raises:
        ConfigError: the address needs keys, or libzmq refuses it.
    """
    check_keys(address, keys is not None, allow_insecure_tcp)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, identity)
    dealer.setsockopt(zmq.RECONNECT_IVL, 20)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
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

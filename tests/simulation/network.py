"""Connections between frontends and engines: ordered, slow, and broken or held up at random.

As ZeroMQ's: what is sent over a connection arrives in order or not at all; a client's messages wait for a
connection; messages are not repeated. Only AddRequest relies on the last, so other messages are repeated now
and then. What is in flight over a connection that breaks arrives in part; a partition only holds it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from splitserve.engine_core.ipc.codec import engine_decoder, frontend_decoder
from splitserve.engine_core.ipc.messages import AddRequest, CallResult, Rejected, StepOutputs
from splitserve.engine_core.ipc.transport import SendResult
from tests.simulation.world import Process, World

RECONNECT_S = (0.02, 0.5)


class Server(Protocol):
    """An engine's process as the network sees it."""

    connections: dict[bytes, Connection]

    def on_frame(self, identity: bytes, frame: bytes) -> None: ...

    def on_disconnected(self) -> None: ...


class Client(Protocol):
    """The end of a frontend."""

    def on_connected(self) -> None: ...

    def on_frame(self, frame: bytes) -> None: ...

    def on_disconnected(self) -> None: ...


class _Direction:
    """What is under way to one end, in order."""

    def __init__(self, link: Link, deliver: Callable[[bytes], None]) -> None:
        self._link = link
        self._deliver = deliver
        self._frames: deque[bytes] = deque()
        self._last_s = 0.0

    def send(self, frame: bytes) -> None:
        world = self._link.world
        self._frames.append(frame)
        self._last_s = max(self._last_s, world.monotonic() + self._link.delay_s())
        world.after(self._last_s - world.monotonic(), self._arrive)

    def _arrive(self) -> None:
        if self._link.is_partitioned:
            self._link.when_healed(self._arrive)
        elif self._frames:
            self._deliver(self._frames.popleft())

    def clear(self) -> None:
        self._frames.clear()

    def cut(self, num_arriving: int) -> None:
        """Deliver some of what is under way now, and drop the rest."""
        arriving = [self._frames.popleft() for _ in range(min(num_arriving, len(self._frames)))]
        self._frames.clear()
        for frame in arriving:
            self._deliver(frame)

    def __len__(self) -> int:
        return len(self._frames)


class Connection:
    """One connection of a frontend with one life of an engine."""

    def __init__(self, link: Link, server: Server, server_process: Process) -> None:
        self.link = link
        self.server = server
        self.is_open = True
        self._to_server = _Direction(
            link, lambda frame: server_process.call(lambda: server.on_frame(link.identity, frame))
        )
        self._to_client = _Direction(link, lambda frame: link.owner.call(lambda: link.client.on_frame(frame)))
        self._server_process = server_process

    def to_server(self, frame: bytes) -> None:
        self._to_server.send(frame)
        if self.link.repeats() and not isinstance(frontend_decoder.decode(frame), AddRequest):
            self._to_server.send(frame)

    def to_client(self, frame: bytes) -> None:
        self._to_client.send(frame)
        if self.link.repeats() and _may_be_repeated(frame):
            self._to_client.send(frame)

    def end(self, *, orderly: bool = False) -> None:
        """Break; orderly: everything arrives before."""
        if not self.is_open:
            return
        self.is_open = False
        rng = self.link.world.rng
        server, link = self.server, self.link
        if server.connections.get(link.identity) is self:
            del server.connections[link.identity]
        if link.is_partitioned:
            # The client hears of it as soon as it hears anything.
            self._to_server.clear()
            self._to_client.clear()
            link.when_healed(lambda: link.lost(self))
        else:
            self._to_server.cut(len(self._to_server) if orderly else rng.randint(0, len(self._to_server)))
            self._to_client.cut(len(self._to_client) if orderly else rng.randint(0, len(self._to_client)))
            link.lost(self)
        self._server_process.call(server.on_disconnected)


class Link:
    """What a frontend has towards one address; connects again and again.

    Attributes:
        find_server: returns who listens at the address now.
    """

    def __init__(
        self,
        world: World,
        owner: Process,
        client: Client,
        identity: bytes,
        find_server: Callable[[], tuple[Server, Process] | None],
        repeat_probability: float,
    ) -> None:
        self.world = world
        self.owner = owner
        self.client = client
        self.identity = identity
        self.is_partitioned = False
        self._find_server = find_server
        self._repeat_probability = repeat_probability
        self._connection: Connection | None = None
        self._unsent: deque[bytes] = deque()
        self._healing: list[Callable[[], None]] = []
        self._slowness_s = world.rng.choice([0.0001, 0.001, 0.01])
        world.after(0.0, self._connect)

    def send(self, frame: bytes) -> None:
        if self._connection is None:
            self._unsent.append(frame)
        else:
            self._connection.to_server(frame)

    def delay_s(self) -> float:
        return self.world.rng.random() * self._slowness_s

    def repeats(self) -> bool:
        return self._repeat_probability > 0 and self.world.chance(self._repeat_probability)

    def cut(self) -> None:
        """Break the connection, if there is one."""
        if self._connection is not None:
            self._connection.end()

    def partition(self) -> None:
        self.is_partitioned = True

    def heal(self) -> None:
        self.is_partitioned = False
        healing, self._healing = self._healing, []
        for action in healing:
            self.world.after(0.0, action)

    def when_healed(self, action: Callable[[], None]) -> None:
        self._healing.append(action)

    def lost(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self.owner.call(self.client.on_disconnected)
            self.world.after(self.world.rng.uniform(*RECONNECT_S), self._connect)

    def _connect(self) -> None:
        if not self.owner.is_alive or self._connection is not None:
            return
        found = self._find_server()
        if found is None or self.is_partitioned:
            self.world.after(self.world.rng.uniform(*RECONNECT_S), self._connect)
            return
        self._connection = found[0].connections[self.identity] = Connection(self, *found)
        unsent, self._unsent = self._unsent, deque()
        for frame in unsent:
            self._connection.to_server(frame)
        self.owner.call(self.client.on_connected)


def send_to(server: Server, identity: bytes, frame: bytes) -> SendResult:
    """Send as the engine's socket does."""
    connection = server.connections.get(identity)
    if connection is None:
        return SendResult.GONE
    connection.to_client(frame)
    return SendResult.SENT


def _may_be_repeated(frame: bytes) -> bool:
    """Whether it is harmless: a token says which it is, its logprobs do not."""
    message = engine_decoder.decode(frame)
    if isinstance(message, StepOutputs):
        return not (message.logprobs or message.prompt_logprobs)
    return not isinstance(message, Rejected | CallResult)

"""An api-frontend without HTTP: sessions, the owner of open requests, and the streams of its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    OverloadedError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.ipc.codec import encode, engine_decoder
from splitserve.engine_core.ipc.messages import AddRequest, StepOutputs
from splitserve.engine_core.process.kill_points import reach
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState
from splitserve.frontend.engines.failover.owner import Failover
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.engine_generation import EngineGeneration
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.engines.stream.split_request import split_request
from tests.frontend.http.fake_pool import ByteTokenizer
from tests.simulation.client import Client
from tests.simulation.engine import EnginePlace
from tests.simulation.network import Link
from tests.simulation.world import Process, World

MODEL = "simulated"
TICK_S = 0.25
RETRY_S = 0.2


class Replica:
    """One engine as a frontend knows it: plays EngineReplica, EngineClient and EngineSocket."""

    def __init__(self, frontend: FrontendLife, number: int, place: EnginePlace, repeat_probability: float):
        self._frontend = frontend
        self._world = frontend.world
        self.session = EngineSession(f"frontend-{frontend.number}", "test", f"ipc://engine-{number}")
        self.session.owner = self
        identity = f"{frontend.number}/{frontend.life}/{number}".encode()
        self.link = Link(self._world, frontend, self, identity, place.server, repeat_probability)
        frontend.after(0.0, self._tick)

    # --- as the owner of requests sees it ---

    @property
    def is_local(self) -> bool:
        return False

    @property
    def num_rows(self) -> int:
        return self.session.ready.max_num_seqs if self.session.ready else 0

    @property
    def takes_model(self) -> str | None:
        return MODEL if self.session.state is EngineState.READY else None

    @property
    def max_model_len(self) -> int:
        return self.session.ready.model.max_model_len if self.session.ready else 0

    @property
    def num_open(self) -> int:
        return len(self.session.sequences)

    @property
    def numerics(self) -> str:
        return ""

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        sequences: list[OpenSequence] = []
        for num_left, request in zip(range(len(requests) - 1, -1, -1), requests, strict=True):
            numbered = msgspec.structs.replace(request, handle=self.session.next_handle(), more=num_left > 0)
            sequences.append(self.session.open(numbered, wake))
        self.send()
        reach("frontend.request_sent")
        return sequences

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        self.session.check_room(len(sequences))
        for sequence in sequences:
            if self._frontend.client_of[id(sequence)].is_over:
                self._world.problems.append("a sequence went on that nobody waits for any more")
        last = len(sequences) - 1
        for i, (sequence, request) in enumerate(zip(sequences, requests, strict=True)):
            handle = self.session.next_handle()
            self.session.adopt(sequence, msgspec.structs.replace(request, handle=handle, more=i < last))
        self.send()

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        self.session.abort([sequence.handle for sequence in sequences])
        self.send()

    # --- as the session sees it ---

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        self._frontend.failover.displaced(self, sequences, cause, error)

    def returned(self, *, same_life: bool) -> None:
        self._frontend.failover.returned(self, same_life=same_life)

    # --- as the network sees it ---

    def on_connected(self) -> None:
        self.session.connected(self._world.monotonic())
        self._wake_up()

    def on_disconnected(self) -> None:
        self.session.disconnected(self._world.monotonic())
        self._wake_up()

    def on_frame(self, frame: bytes) -> None:
        message = engine_decoder.decode(frame)
        try:
            self.session.receive(message, self._world.monotonic())
        except ProtocolError:
            raise AssertionError("the engine sent nonsense") from None
        if isinstance(message, StepOutputs):
            reach("frontend.outputs_received")
        self._wake_up()

    def send(self) -> None:
        while self.session.outbox:
            self.link.send(encode(self.session.outbox.popleft()))

    def _tick(self) -> None:
        self.session.tick(self._world.monotonic())
        self._wake_up()
        self._frontend.after(TICK_S, self._tick)

    def _wake_up(self) -> None:
        if self.session.sequences.wake_up(self._world.monotonic()):
            self._frontend.after(0.0, self._wake_up)
        self.send()


class FrontendLife(Process):
    """One api-frontend process.

    Attributes:
        failover: owns its requests.
        replicas: its engines, in order of address.
        clients: whose connections it has.
    """

    def __init__(
        self,
        world: World,
        number: int,
        life: int,
        places: Sequence[EnginePlace],
        *,
        max_migrations: int,
        wait_s: float,
        repeat_probability: float,
    ) -> None:
        super().__init__(world)
        self.number, self.life = number, life
        self.replicas: list[Replica] = []
        self.failover = Failover(self.replicas, world.monotonic, max_migrations=max_migrations, wait_s=wait_s)
        self.failover.on_work = self._kick
        self.clients: list[Client] = []
        # By the identity of the sequences, which live as long as their clients.
        self.client_of: dict[int, Client] = {}
        self.wait_s = wait_s
        self._is_kicked = False
        self._tokenizer = ByteTokenizer()
        self.replicas += [Replica(self, i, place, repeat_probability) for i, place in enumerate(places)]

    def on_death(self) -> None:
        for replica in self.replicas:
            replica.link.cut()
        for client in self.clients:
            client.broke(self.world.monotonic())

    def serve(self, client: Client) -> None:
        """Take a client's request; it waits for an engine if there is none."""
        self.clients.append(client)
        client.begin(self.world.monotonic())
        self._try(client)

    def _try(self, client: Client) -> None:
        if client.is_over:
            return
        now_s = self.world.monotonic()
        engines = [replica for replica in self.replicas if replica.takes_model]
        if not engines:
            if now_s - client.begun_s < self.wait_s:
                self.after(RETRY_S, lambda: self._try(client))
            else:
                client.failed(now_s, EngineUnavailableError("no engine is ready"))
            return
        engine = min(engines, key=lambda replica: replica.num_open)
        host = self.failover.begin(MODEL, engine)
        request = client.request
        try:
            sources = host.open(split_request(request), lambda: self._take(client))
        except (EngineUnavailableError, OverloadedError) as error:
            client.failed(now_s, error)
            return
        streams = [
            SequenceStream(i, source, request.sampling, request.prompt_token_ids, self._tokenizer)
            for i, source in enumerate(sources)
        ]
        self.client_of.update((id(source), client) for source in sources)
        client.opened(now_s, EngineGeneration(host, streams, PoolStats()))
        if client.leaves_after_s is not None:
            self.after(client.leaves_after_s, lambda: client.leave(self.world.monotonic()))

    def _take(self, client: Client) -> None:
        # In the middle of open() nothing can have come.
        if client.generation is not None and not client.is_over:
            client.take(self.world.monotonic())

    def _kick(self) -> None:
        if not self._is_kicked:
            self._is_kicked = True
            self.after(0.0, self._pump)

    def _pump(self) -> None:
        self._is_kicked = False
        delay_s = self.failover.pump()
        if delay_s == 0:
            self._kick()
        elif delay_s is not None:
            self.after(delay_s, self._pump_again)

    def _pump_again(self) -> None:
        if not self._is_kicked:
            self._pump()

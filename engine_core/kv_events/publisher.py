"""The sockets of the KV events: a PUB that sends every batch, and a ROUTER that sends missed ones again.

    PUB      [topic, number, payload]
    ROUTER   <- [number]          preceded by an empty frame, as a REQ socket sends it; the first one wanted
             -> [number, payload] the same, for every batch that is kept, then an end mark (-1, nothing)

Numbers are 8 bytes, big-endian. Nothing here blocks: what a subscriber does not read in time libzmq drops for
that subscriber alone, who notices by the number of the next batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import EngineConfig, SchedulerConfig
from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.curve import ServerKeys
from splitserve.engine_core.ipc.peers import PeerFaults
from splitserve.engine_core.ipc.sockets import BoundSocket, SocketLimits
from splitserve.engine_core.ipc.transport import SendResult, try_receive, try_send
from splitserve.engine_core.kv_events.format import encode_batch
from splitserve.engine_core.kv_events.history import BatchHistory, NumberedBatch
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.kv_events.replays import Replays
from splitserve.engine_core.process.logs import log_event

_log = logging.getLogger("engine_core")

NUMBER_BYTES = 8
MAX_HISTORY_BYTES = 64 * 2**20
# Of all peers, and of one: who asks so often within a round has its connection ended.
MAX_REQUESTS_PER_TURN = 1024
MAX_PEER_REQUESTS_PER_TURN = 256
# A subscription has at most a topic, a request a number; both small whoever sends them.
PUBLISH_LIMITS = SocketLimits(max_message_bytes=1024, send_hwm=1000, max_connections=256)
REPLAY_LIMITS = SocketLimits(max_message_bytes=1024, send_hwm=64, max_connections=64)


class KVEventPublisher:
    """Publishes what an engine notes; owned by the busy loop's thread.

    Args:
        context: of the engine's sockets.
        config: addresses, topic and how much to keep; validated.
        keys: for addresses beyond this machine.
        clock: for subscribers that do not read what they asked for.
        faults: counts requests that are not valid.
    """

    def __init__(
        self,
        context: zmq.Context,
        config: EngineConfig,
        keys: ServerKeys | None,
        clock: Clock,
        faults: PeerFaults,
    ) -> None:
        """Bind.

        Raises:
            ConfigError: an address is in use, not allowed without keys, or its directory is not private.
        """
        self._topic = config.kv_events_topic.encode()
        self._faults = faults
        self._recorder: KVEventRecorder | None = None
        self._history = BatchHistory(config.kv_events_buffer_steps, MAX_HISTORY_BYTES)
        self._replays = Replays(self._history, self._send_missed, clock)
        insecure = config.allow_insecure_tcp
        self._clock = clock
        self._publish = BoundSocket(
            context, zmq.PUB, config.kv_events_address, PUBLISH_LIMITS, keys, allow_insecure_tcp=insecure
        )
        self._replay: BoundSocket | None = None
        if config.kv_events_replay_address:
            try:
                self._replay = BoundSocket(
                    context,
                    zmq.ROUTER,
                    config.kv_events_replay_address,
                    REPLAY_LIMITS,
                    keys,
                    allow_insecure_tcp=insecure,
                )
            except BaseException:
                self._publish.close()
                raise
        self._log_addresses()

    @property
    def sources(self) -> list[zmq.Socket[bytes]]:
        """What to poll for reading: new subscriptions are taken in when the sockets are polled."""
        return [source for bound in self._bound for source in (bound.socket, bound.connections.monitor)]

    def next_due_s(self) -> float:
        """Return the time by which run() has to be called again; inf when nothing is due."""
        return min(self._replays.next_due_s(), *(bound.connections.next_due_s() for bound in self._bound))

    def begin(self, config: SchedulerConfig) -> KVEventRecorder:
        """Return what an engine of this configuration has to tell, now that it begins to serve."""
        self._recorder = KVEventRecorder(config.block_size, has_offload_tier=config.num_host_blocks > 0)
        return self._recorder

    def run(self, readable: Container[object]) -> None:
        """Publish what was noted since the last call as one batch, and go on with replays.

        Args:
            readable: those of the sources that have something to read.
        """
        events = self._recorder.take() if self._recorder is not None else []
        if events:
            payload = encode_batch(events)
            number = _pack_number(self._history.append(payload))
            self._publish.socket.send_multipart((self._topic, number, payload), zmq.NOBLOCK)
        now_s = self._clock.monotonic()
        for bound in self._bound:
            if bound.connections.monitor in readable or now_s >= bound.connections.next_due_s():
                bound.look_after(now_s)
        if self._replay is not None and self._replay.socket in readable:
            self._take_requests(self._replay, now_s)
        self._replays.serve()

    def close(self) -> None:
        """Close; what subscribers have not read is dropped."""
        if self._replay is not None:
            self._replay.close()
        self._publish.close()

    @property
    def _bound(self) -> list[BoundSocket]:
        return [self._publish] if self._replay is None else [self._publish, self._replay]

    def _take_requests(self, replay: BoundSocket, now_s: float) -> None:
        asked: Counter[int] = Counter()
        for _ in range(MAX_REQUESTS_PER_TURN):
            message = try_receive(replay.socket)
            if message is None:
                return
            peer, frames, descriptor = message
            replay.connections.heard(descriptor)
            asked[descriptor] += 1
            if asked[descriptor] > MAX_PEER_REQUESTS_PER_TURN:
                replay.connections.end(descriptor, now_s)
            elif len(frames) != 2 or frames[0] or len(frames[1]) != NUMBER_BYTES:
                self._refuse(peer, "a replay request must be an empty frame and an 8-byte number")
            elif not self._replays.begin(peer, int.from_bytes(frames[1], "big")):
                self._refuse(peer, "too many replays at once, try again later")

    def _refuse(self, peer: bytes, message: str) -> None:
        self._faults.protocol_error(peer, f"subscriber of KV events {peer.hex()}", ProtocolError(message))

    def _send_missed(self, peer: bytes, batch: NumberedBatch) -> SendResult:
        assert self._replay is not None, "only who asked there is served"
        return try_send(self._replay.socket, (peer, b"", _pack_number(batch.number), batch.payload))

    def _log_addresses(self) -> None:
        replay = self._replay.address if self._replay is not None else "none"
        log_event(
            _log, logging.INFO, "publishing KV events", address=self._publish.address, replay_address=replay
        )


def _pack_number(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big", signed=True)

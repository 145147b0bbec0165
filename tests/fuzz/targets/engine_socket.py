"""Mutated messages and mutated bytes on the socket of a running engine, while a frontend is served.

A piece of a case is one byte that says who sends it, then what is sent:

    0 to 2    a frontend that has said hello, as one frame
    3         the same in several frames, cut wherever it has a zero
    4         a peer that says the bytes of ZMTP itself, from the greeting on, and reads nothing
"""

from __future__ import annotations

import contextlib
import os
from random import Random

import zmq

from splitserve.engine_core.ipc.codec import encode, engine_decoder
from splitserve.engine_core.ipc.messages import Hello, Ping, Pong
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from tests.engine_core.server import raw_peer
from tests.fuzz.case import Case
from tests.fuzz.mutation.formats import mutate_msgpack
from tests.fuzz.mutation.frames import frontend_frames
from tests.fuzz.mutation.raw import mutate_bytes
from tests.fuzz.targets.live_server import LiveServer

PIECES_PER_CASE = 512
NUM_PEERS = 3
LAST_NONCE = 2**62
DEADLINE_MS = 60_000
_MANY, _BYTES = 3, 4


class EngineSocket:
    """See the module."""

    what = "frames"

    def __init__(self, live: LiveServer | None = None) -> None:
        self._corpus = frontend_frames()
        self._said = [
            raw_peer.GREETING + raw_peer.ready(b"raw") + raw_peer.frame(frame) + raw_peer.PING
            for frame in self._corpus
        ]
        self._live = live or LiveServer()
        self._num_raw = 0

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        how = int(rng.random() * 3) if rng.random() < 0.97 else 3 + int(rng.random() * 2)
        corpus = self._said if how == _BYTES else self._corpus
        return self.mutate(rng, bytes((how,)) + corpus[int(rng.random() * len(corpus))])

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        if piece[:1] == bytes((_BYTES,)):
            return piece[:1] + mutate_bytes(rng, piece[1:], self._said[0])
        return piece[:1] + mutate_msgpack(rng, piece[1:], self._corpus)

    def run(self, case: Case) -> int:
        with zmq.Context() as context, contextlib.ExitStack() as stack:
            peers = [stack.enter_context(self._join(context)) for _ in range(NUM_PEERS)]
            for piece in case:
                how, said = piece[0] if piece else 0, piece[1:]
                if how == _BYTES:
                    self._say_bytes(said)
                    continue
                frames = said.split(b"\0") if how == _MANY else [said]
                _send(peers[how % NUM_PEERS], frames)
            for peer in peers:
                _wait(peer)
        self._live.check()
        return len(case)

    def _join(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        peer = connect_engine(context, self._live.server.address, b"fuzz-" + os.urandom(4))
        peer.setsockopt(zmq.LINGER, 0)
        peer.send(encode(Hello(PROTOCOL_VERSION, "fuzz", "0")))
        return peer

    def _say_bytes(self, said: bytes) -> None:
        self._num_raw += 1
        with contextlib.suppress(OSError), raw_peer.connect(self._live.server.address) as peer:
            peer.sendall(said)
            if len(said) % 2:
                raw_peer.reset(peer)

    def finish(self) -> str:
        self._live.wait_until_idle()
        return f"{self._num_raw} of them as bytes of ZMTP, {self._live.growth()}"

    def close(self) -> None:
        self._live.close()


def _send(peer: zmq.Socket[bytes], frames: list[bytes]) -> None:
    while True:
        while peer.poll(0):
            peer.recv_multipart()
        try:
            peer.send_multipart(frames, zmq.NOBLOCK)
            return
        except zmq.Again:
            assert peer.poll(DEADLINE_MS, zmq.POLLIN | zmq.POLLOUT), "the engine takes no message"


def _wait(peer: zmq.Socket[bytes]) -> None:
    """Wait until the engine has taken everything: it answers a ping, whether it knows the peer or not."""
    peer.send(encode(Ping(LAST_NONCE)))
    while peer.poll(DEADLINE_MS):
        message = engine_decoder.decode(peer.recv())
        if isinstance(message, Pong) and message.nonce == LAST_NONCE:
            return
    raise AssertionError("the engine does not answer a ping")

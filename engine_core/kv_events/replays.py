"""Which peers requested missed batches, and how much of it each has been sent.

    state     event                                   next
    -         begin()                                 open, at the number asked for
    open      a batch was sent                        open, at the next number
    open      nothing is left                         the end mark is sent, gone
    open      the peer's queue is full                open; gone after STALL_S without a batch sent
    open      the connection is gone                  gone
    open      begin() by the same peer                open, at the number asked for

A whole replay is thousands of messages, so it is served in slices: between two of them the busy loop does
what else there is to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.kv_events.history import BatchHistory, NumberedBatch

MAX_REPLAYS = 16
MAX_SLICE_BATCHES = 16
MAX_SLICE_BYTES = 2**18
RETRY_S = 0.01
STALL_S = 5.0
NEVER = float("inf")

END_MARK = NumberedBatch(-1, b"")
"""Follows the last batch; its number is sent as 8 bytes of two's complement."""

SendBatch = Callable[[bytes, NumberedBatch], SendResult]


@dataclass(slots=True)
class _Replay:
    next_number: int
    last_sent_s: float


class Replays:
    """The replays in progress; owned by the busy loop's thread.

    Args:
        history: what can be asked for.
        send: sends one batch to a peer without blocking.
        clock: for peers that do not read.
    """

    def __init__(self, history: BatchHistory, send: SendBatch, clock: Clock) -> None:
        self._history = history
        self._send = send
        self._clock = clock
        self._open: dict[bytes, _Replay] = {}
        self._due_s = NEVER

    def begin(self, peer: bytes, number: int) -> bool:
        """Serve a peer every batch from `number` on that is kept; False if too many are being served."""
        if len(self._open) >= MAX_REPLAYS and peer not in self._open:
            return False
        now_s = self._clock.monotonic()
        self._open[peer] = _Replay(number, now_s)
        self._due_s = now_s
        return True

    def next_due_s(self) -> float:
        """Return the time by which serve() has to be called; inf when nobody is being served."""
        return self._due_s

    def serve(self) -> None:
        """Send the next slice to everyone who is being served."""
        now_s = self._clock.monotonic()
        if now_s < self._due_s:
            return
        num_sent = 0
        for peer, replay in list(self._open.items()):
            num_sent += self._serve_slice(peer, replay)
            if now_s - replay.last_sent_s > STALL_S:
                self._open.pop(peer, None)
        self._due_s = (now_s if num_sent else now_s + RETRY_S) if self._open else NEVER

    def _serve_slice(self, peer: bytes, replay: _Replay) -> int:
        """Return how many messages were sent."""
        num_bytes = 0
        for num_sent in range(MAX_SLICE_BATCHES):
            batch = self._history.first_from(replay.next_number) or END_MARK
            result = self._send(peer, batch)
            if result is SendResult.FULL:
                return num_sent
            if result is SendResult.GONE or batch is END_MARK:
                del self._open[peer]
                return num_sent
            replay.next_number = batch.number + 1
            replay.last_sent_s = self._clock.monotonic()
            num_bytes += len(batch.payload)
            if num_bytes >= MAX_SLICE_BYTES:
                return num_sent + 1
        return MAX_SLICE_BATCHES

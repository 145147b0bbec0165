"""Why workers end, in their own words: heard to the end of their connections before anybody is blamed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import zmq

from engine_core.errors import ProtocolError
from engine_core.ipc.codec import from_worker_decoder
from engine_core.ipc.transport import RECEIVE_HWM, BoundRouter
from engine_core.ipc.worker_messages import WorkerFailed

# libzmq's thread reads a connection to its end and tells so; on a busy machine that takes its time. There is
# nothing to tell of a worker that ended before it connected, or whose machine is gone.
_READ_TO_THE_END_S = 1.0
# What can be queued of the most ranks there may be.
_MAX_MESSAGES = 64 * RECEIVE_HWM


class LastWords:
    """The WorkerFailed of each rank that has sent one; used by the busy loop's thread.

    Args:
        rank_of: tells the rank of a connection's identity.
    """

    def __init__(self, rank_of: Callable[[bytes], int]) -> None:
        self._rank_of = rank_of
        self._router: BoundRouter | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._num_ended = 0
        self.of: dict[int, WorkerFailed] = {}

    def watch(self, router: BoundRouter | None) -> None:
        """Count the connections that end from now on; called before the first worker connects."""
        if router is not None:
            self._router, self._monitor = router, router.watch_disconnects()
            for source in (self._monitor, router.socket):
                self._poller.register(source, zmq.POLLIN)

    def hear(self, num_ended: int) -> None:
        """Take what was sent until so many connections have ended, for a second at most.

        Whatever else arrives meanwhile is dropped: there are no more steps.

        Args:
            num_ended: workers known to have ended.
        """
        if self._router is None or self._monitor is None:
            return
        end_s = time.monotonic() + _READ_TO_THE_END_S
        while self._count_ended(self._monitor) < num_ended and (left_s := end_s - time.monotonic()) > 0:
            self._wait(left_s)
            self._take(self._router)
        # A connection's end is told after what it brought.
        self._take(self._router)

    def close(self) -> None:
        """Release the socket; before the context ends."""
        if self._monitor is not None:
            self._monitor.close(linger=0)
            self._monitor = None

    def _count_ended(self, monitor: zmq.Socket[bytes]) -> int:
        while monitor.poll(0):
            monitor.recv_multipart()
            self._num_ended += 1
        return self._num_ended

    def _wait(self, timeout_s: float) -> None:
        self._poller.poll(math.ceil(timeout_s * 1000))

    def _take(self, router: BoundRouter) -> None:
        for identity, frame in router.receive(_MAX_MESSAGES):
            try:
                message = from_worker_decoder.decode(frame) if isinstance(frame, bytes) else None
            except ProtocolError:
                continue
            if isinstance(message, WorkerFailed):
                self.of[self._rank_of(identity)] = message

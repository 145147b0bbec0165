"""Why did a worker end? Every rank's last messages are read before one of them is blamed.

rank                     read to the end when
has sent WorkerFailed    that is read: nothing relevant comes after it
has sent anything else   nothing can be sent to it any more: libzmq drops a connection only after queuing
                         all it received from it, and what is queued then is read
has sent nothing         never: it ended before it connected, or libzmq has yet to read its connection
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

import zmq

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import encode, from_worker_decoder
from splitserve.engine_core.ipc.transport import BoundRouter, SendResult
from splitserve.engine_core.ipc.worker_messages import Shutdown, WorkerFailed

# For a rank that has connected: its kernel closes the connection at once, but a lost machine does not.
_READ_TO_THE_END_S = 5.0
# For a rank that has not: on a busy machine libzmq's thread may take a while to read a connection.
_FIRST_WORD_S = 1.0
# libzmq reports new messages, but not that it has dropped a connection: poll for that.
_ASK_S = 0.01


class LastWords:
    """The WorkerFailed of each rank that has sent one; used by the busy loop's thread.

    Args:
        rank_of: tells the rank of a connection's identity.
    """

    def __init__(self, rank_of: Callable[[bytes], int]) -> None:
        self._rank_of = rank_of
        self._identity_of: dict[int, bytes] = {}
        self.of: dict[int, WorkerFailed] = {}

    def note(self, rank: int, identity: bytes) -> None:
        """A rank has sent a message, so that the end of its connection can be detected."""
        self._identity_of[rank] = identity

    def hear(self, router: BoundRouter | None, ended: Collection[int]) -> None:
        """Read what the ranks have sent, to the end, for a few seconds at most.

        Whatever else arrives meanwhile is dropped: there are no more steps.

        Args:
            router: what the workers connect to; None before it is bound.
            ended: ranks whose process is known to have ended.
        """
        if router is None:
            return
        begin_s = time.monotonic()
        self._take(router)
        while missing := [rank for rank in ended if not self._is_at_its_end(router, rank)]:
            waits_s = _READ_TO_THE_END_S if self._identity_of.keys() & missing else _FIRST_WORD_S
            left_s = begin_s + waits_s - time.monotonic()
            if left_s <= 0:
                break
            self._wait(router, min(left_s, _ASK_S))
            self._take(router)

    def _is_at_its_end(self, router: BoundRouter, rank: int) -> bool:
        identity = self._identity_of.get(rank)
        if rank not in self.of and identity is not None:
            # The message is for nobody: the process has ended.
            if router.send(identity, encode(Shutdown())) is not SendResult.GONE:
                return False
            self._take(router)
        return rank in self.of or identity is not None

    def _wait(self, router: BoundRouter, timeout_s: float) -> None:
        router.socket.poll(math.ceil(timeout_s * 1000), zmq.POLLIN)

    def _take(self, router: BoundRouter) -> None:
        """Take everything that is queued."""
        for identity, frame, _ in router.receive():
            rank = self._rank_of(identity)
            self.note(rank, identity)
            try:
                message = None if isinstance(frame, ProtocolError) else from_worker_decoder.decode(frame)
            except ProtocolError:
                continue
            if isinstance(message, WorkerFailed):
                self.of[rank] = message

"""Why workers end, in their own words: heard to the end of their connections before anybody is blamed.

rank                     heard to the end when
has sent WorkerFailed    it is taken: nothing that counts comes after it
has sent anything else   nothing can be sent to it any more: libzmq gives a connection up after it has queued
                         all that the connection brought, and what is queued then is taken
was never heard of       never: it ended before it connected, or libzmq has yet to read its connection
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

# For a rank that was heard of: its kernel ends the connection at once, but a machine that is gone does not.
_READ_TO_THE_END_S = 5.0
# For a rank that was not: on a busy machine libzmq's thread takes its time with a connection that is there.
_FIRST_WORD_S = 1.0
# libzmq tells of new messages, but not that it has given a connection up.
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
        """A rank was heard of, so that the end of its connection can be told."""
        self._identity_of[rank] = identity

    def hear(self, router: BoundRouter | None, ended: Collection[int]) -> None:
        """Take what the ranks have sent, to the end, for some seconds at most.

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

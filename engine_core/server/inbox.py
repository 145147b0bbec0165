"""Which received messages the engine handles next: a bounded queue per peer, served round-robin; no I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.transport import Received


class InboxBound(NamedTuple):
    """How much may be queued for one peer."""

    num_messages: int
    num_bytes: int


# A frontend has at most 16,384 sequences in flight, so a well-behaved one never comes near this.
FRONTEND_BOUND = InboxBound(32_768, 256 * 2**20)
# For a peer that has not said hello. A frontend may have queued 1024 messages for an engine that died.
STRANGER_BOUND = InboxBound(2048, 64 * 2**20)
MAX_BYTES = 2**30


@dataclass(slots=True)
class _Queue:
    messages: deque[Received] = field(default_factory=deque)
    num_bytes: int = 0


class Inbox:
    """Queued messages, by peer; owned by the busy loop's thread.

    Args:
        frontend_bound: limit for one frontend.
        stranger_bound: limit for one unknown peer.
        max_bytes: limit for all peers together.
    """

    def __init__(
        self,
        frontend_bound: InboxBound = FRONTEND_BOUND,
        stranger_bound: InboxBound = STRANGER_BOUND,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._bounds = {True: frontend_bound, False: stranger_bound}
        self._max_bytes = max_bytes
        # In round-robin order.
        self._queues: OrderedDict[bytes, _Queue] = OrderedDict()
        self._num_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, message: Received, *, is_known: bool) -> Received | None:
        """Queue a message.

        Args:
            message: from any peer.
            is_known: whether the peer is a connected frontend.

        Returns:
            The peer's last message if its queue exceeded its limit, in which case the whole queue is
            dropped; None otherwise.
        """
        queue = self._queues.setdefault(message.identity, _Queue())
        size = _num_bytes(message)
        queue.messages.append(message)
        queue.num_bytes += size
        self._num_bytes += size
        bound = self._bounds[is_known]
        if len(queue.messages) > bound.num_messages or queue.num_bytes > bound.num_bytes:
            return self._drop(message.identity)
        if self._num_bytes > self._max_bytes:
            return self._drop(max(self._queues, key=lambda identity: self._queues[identity].num_bytes))
        return None

    def take(self) -> Received | None:
        """Return the next message, round-robin over the peers; None if none is queued."""
        if not self._queues:
            return None
        identity, queue = next(iter(self._queues.items()))
        message = queue.messages.popleft()
        size = _num_bytes(message)
        queue.num_bytes -= size
        self._num_bytes -= size
        if queue.messages:
            self._queues.move_to_end(identity)
        else:
            del self._queues[identity]
        return message

    def _drop(self, identity: bytes) -> Received:
        queue = self._queues.pop(identity)
        self._num_bytes -= queue.num_bytes
        return queue.messages[-1]


def _num_bytes(message: Received) -> int:
    return 0 if isinstance(message.frame, ProtocolError) else len(message.frame)

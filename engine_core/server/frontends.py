"""Which frontends are connected, how long each may be silent, and what is queued to be sent; no I/O.

Life of one frontend, keyed by its connection's identity:

    state     hello            any message      lease runs out    silent on, gone, outbox beyond its credit
    unknown   -> known         stays unknown    -                 -
    known     lease renewed    lease renewed    -> overdue        -> unknown
    overdue   -> known         -> known         -                 -> unknown

Overdue lasts a quarter of the lease, in which a live frontend has pinged: an engine that was itself stopped
(for example by a suspended machine) finds every lease expired before it has read what arrived meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.ipc.transport import SendResult

MAX_FRONTENDS = 256
# How much one frontend may leave unread, beyond libzmq's own short queue, before it is dropped.
CREDIT_BYTES = 8 * 2**20
# Frontends ping four times per lease or more often.
OVERDUE_SHARE = 0.25

Send = Callable[[bytes, bytes], SendResult]


@dataclass(slots=True)
class Frontend:
    """One connected frontend; `outbox` holds frames that its connection had no room for yet.

    Attributes:
        overdue_since_s: when its lease was found expired; None while it is valid.
    """

    identity: bytes
    name: str
    last_seen_s: float
    overdue_since_s: float | None = None
    outbox: deque[bytes] = field(default_factory=deque)
    outbox_bytes: int = 0


class FrontendTable:
    """All frontends that said hello; owned by the busy loop's thread.

    Args:
        send: sends one frame to an identity without blocking.
        lease_s: seconds of silence after which a frontend is overdue.
    """

    def __init__(
        self,
        send: Send,
        lease_s: float,
        *,
        max_frontends: int = MAX_FRONTENDS,
        credit_bytes: int = CREDIT_BYTES,
    ) -> None:
        self._send = send
        self._lease_s = lease_s
        self._grace_s = lease_s * OVERDUE_SHARE
        self._max_frontends = max_frontends
        self._credit_bytes = credit_bytes
        # Ordered by last_seen_s, longest silent first.
        self._frontends: OrderedDict[bytes, Frontend] = OrderedDict()
        self._stalled: dict[bytes, Frontend] = {}

    def __len__(self) -> int:
        return len(self._frontends)

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._frontends))

    def __contains__(self, identity: object) -> bool:
        return identity in self._frontends

    def hello(self, identity: bytes, name: str, now_s: float) -> bool:
        """Add a frontend, or renew its lease.

        Returns:
            Whether it was known already.

        Raises:
            OverloadedError: the maximum number of frontends is connected.
        """
        if self.touch(identity, now_s):
            self._frontends[identity].name = name
            return True
        if len(self._frontends) >= self._max_frontends:
            raise OverloadedError(
                f"{self._max_frontends} frontends are already connected, which is the maximum"
            )
        self._frontends[identity] = Frontend(identity, name, now_s)
        return False

    def touch(self, identity: bytes, now_s: float) -> bool:
        """Renew the lease of a frontend that sent something; False if it is unknown."""
        frontend = self._frontends.get(identity)
        if frontend is None:
            return False
        frontend.last_seen_s = now_s
        frontend.overdue_since_s = None
        self._frontends.move_to_end(identity)
        return True

    def name(self, identity: bytes) -> str:
        """Return the name it gave, or its identity in hex if it is unknown."""
        frontend = self._frontends.get(identity)
        return frontend.name if frontend else identity.hex()

    def expired(self, now_s: float) -> list[bytes]:
        """Return the frontends that were overdue for too long; they stay until dropped."""
        expired = []
        for identity, frontend in self._frontends.items():
            if now_s - frontend.last_seen_s <= self._lease_s:
                break
            if frontend.overdue_since_s is None:
                frontend.overdue_since_s = now_s
            elif now_s - frontend.overdue_since_s > self._grace_s:
                expired.append(identity)
        return expired

    def next_expiry_s(self) -> float | None:
        """Return the time at which to call expired() next; None without frontends."""
        due_s = None
        for frontend in self._frontends.values():
            overdue_s = frontend.overdue_since_s
            mine_s = frontend.last_seen_s + self._lease_s if overdue_s is None else overdue_s + self._grace_s
            due_s = mine_s if due_s is None else min(due_s, mine_s)
            if overdue_s is None:
                break
        return due_s

    def drop(self, identity: bytes) -> None:
        """Remove a frontend and what was queued for it."""
        self._frontends.pop(identity, None)
        self._stalled.pop(identity, None)

    def post(self, identity: bytes, frame: bytes) -> SendResult:
        """Send a frame, or keep it in order until the frontend's connection has room.

        Returns:
            SENT if it was sent or kept. Otherwise the frontend has to be dropped: GONE if it is gone or
            unknown, FULL if its unread frames exceed its credit.
        """
        frontend = self._frontends.get(identity)
        if frontend is None:
            return SendResult.GONE
        if not frontend.outbox:
            result = self._send(identity, frame)
            if result is not SendResult.FULL:
                return result
        frontend.outbox.append(frame)
        frontend.outbox_bytes += len(frame)
        self._stalled[identity] = frontend
        return SendResult.SENT if frontend.outbox_bytes <= self._credit_bytes else SendResult.FULL

    def send_once(self, identity: bytes, frame: bytes) -> None:
        """Send a frame to a peer that is not in the table; lost if the peer has no room or is gone."""
        self._send(identity, frame)

    @property
    def has_stalled(self) -> bool:
        """Whether any frame is waiting for room."""
        return bool(self._stalled)

    def flush(self) -> list[bytes]:
        """Send queued frames while there is room; return the frontends found gone, still to be dropped."""
        return [identity for identity in list(self._stalled) if not self._flush_one(self._stalled[identity])]

    def _flush_one(self, frontend: Frontend) -> bool:
        while frontend.outbox:
            result = self._send(frontend.identity, frontend.outbox[0])
            if result is SendResult.GONE:
                return False
            if result is SendResult.FULL:
                return True
            frontend.outbox_bytes -= len(frontend.outbox.popleft())
        del self._stalled[frontend.identity]
        return True

"""Which connections of a bound socket have to end? A table of their states; no I/O.

state     event                                            next
-         opened(), below max_connections                  silent
-         opened(), at max_connections                     ending; or silent, and the oldest silent one ends
silent    greet(): its peer is known                       known
silent    nothing for `patience_s`                         ending
known     the peer is no longer known                      silent
known     greet() of the same identity elsewhere           ending
any       end()                                            ending
any       closed()                                         -

A connection that libzmq has stopped reading does not end when told to. Such connections are stuck: only
binding the socket again gets rid of them.
"""

from __future__ import annotations

from collections.abc import Callable

SWEEP_S = 5.0
STUCK_S = 5.0
# Of max_connections. Below this share they are left alone: binding again ends the good connections too.
MAX_STUCK_SHARE = 0.25
NEVER = float("inf")


class ConnectionTable:
    """The connections of one bound socket, by descriptor; owned by the thread of that socket.

    Args:
        max_connections: most connections that are open or ending at once.
        patience_s: seconds after which a connection with an unknown peer is ended, or earlier if its place is
            needed; None if peers do not introduce themselves.
    """

    def __init__(self, max_connections: int, patience_s: float | None = None) -> None:
        self.max_connections = max_connections
        self._patience_s = patience_s
        # By descriptor, oldest first: when it became silent, and when it was told to end.
        self._silent: dict[int, float] = {}
        self._ending: dict[int, float] = {}
        self._known: dict[int, bytes] = {}
        self._descriptor_of: dict[bytes, int] = {}
        self._sweep_s = NEVER
        self.num_refused = 0

    def __len__(self) -> int:
        return len(self._silent) + len(self._known) + len(self._ending)

    def opened(self, descriptor: int, now_s: float) -> int | None:
        """A connection was accepted; return the one that has to end to make room, which may be itself."""
        self.closed(descriptor)
        self._silent[descriptor] = now_s
        if self._patience_s is not None:
            self._sweep_s = min(self._sweep_s, now_s + SWEEP_S)
        if len(self) <= self.max_connections:
            return None
        self.num_refused += 1
        # A connection that was just opened has had no time to introduce itself.
        victim = descriptor if self._patience_s is None else next(iter(self._silent))
        self.end(victim, now_s)
        return victim

    def closed(self, descriptor: int) -> None:
        """A connection has ended."""
        self._silent.pop(descriptor, None)
        self._ending.pop(descriptor, None)
        self._forget_peer(descriptor)

    def greet(self, descriptor: int, identity: bytes, now_s: float) -> int | None:
        """The peer is now known; return the earlier connection with this identity, which has to end."""
        before = self._descriptor_of.get(identity)
        if before == descriptor or descriptor not in self._silent:
            return None
        del self._silent[descriptor]
        if before is not None:
            self.end(before, now_s)
        self._known[descriptor] = identity
        self._descriptor_of[identity] = descriptor
        return before

    def end(self, descriptor: int, now_s: float) -> bool:
        """Note that a connection is told to end; False if it was told already, or is not open."""
        if descriptor not in self._silent and descriptor not in self._known:
            return False
        self._silent.pop(descriptor, None)
        self._forget_peer(descriptor)
        self._ending[descriptor] = now_s
        return True

    def end_silent(self, now_s: float) -> list[int]:
        """Return the connections of all unknown peers, which have to end."""
        return self._end_silent(now_s, now_s)

    def open(self) -> list[int]:
        """Return the connections that have not been told to end."""
        return [*self._silent, *self._known]

    def is_ending(self, descriptor: int) -> bool:
        """Whether it was told to end but has not ended yet."""
        return descriptor in self._ending

    def next_due_s(self) -> float:
        """Return the time at which sweep() has to be called; inf when nothing is due."""
        return self._sweep_s

    def sweep(self, now_s: float, is_known: Callable[[bytes], bool]) -> list[int]:
        """Return the connections that have been silent for too long; each is returned once.

        Args:
            now_s: the time.
            is_known: whether the peer of an identity is still known.
        """
        if self._patience_s is None or now_s < self._sweep_s:
            return []
        self._sweep_s = now_s + SWEEP_S if len(self) else NEVER
        for descriptor, identity in list(self._known.items()):
            if not is_known(identity):
                self._forget_peer(descriptor)
                self._silent[descriptor] = now_s
        return self._end_silent(now_s - self._patience_s, now_s)

    def is_stuck(self, now_s: float) -> bool:
        """Whether so many connections are stuck that the socket has to be bound again."""
        late = sum(now_s - since_s >= STUCK_S for since_s in self._ending.values())
        return late > MAX_STUCK_SHARE * self.max_connections

    def clear(self) -> None:
        """All connections have ended."""
        for connections in (self._silent, self._ending, self._known, self._descriptor_of):
            connections.clear()

    def _end_silent(self, before_s: float, now_s: float) -> list[int]:
        overdue = [descriptor for descriptor, since_s in self._silent.items() if since_s <= before_s]
        return [descriptor for descriptor in overdue if self.end(descriptor, now_s)]

    def _forget_peer(self, descriptor: int) -> None:
        identity = self._known.pop(descriptor, None)
        if identity is not None:
            del self._descriptor_of[identity]

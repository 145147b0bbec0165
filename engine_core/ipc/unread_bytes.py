"""Which connections bring bytes without end that become no message; no I/O.

A message may have many frames, and libzmq keeps them all until the last one has come: neither its bound of
a message's size, which is that of a frame, nor one of its queues counts them.

bytes since the last message        once                    twice in a row
at most the bound                   -                       -
more than the bound of one          suspect                 it has to end
all together more than theirs       who has most: suspect   it has to end
"""

from __future__ import annotations

from collections.abc import Mapping

# Beside one message: what the kernel and libzmq hold, and whatever a subscriber says that nobody hears of.
SLACK_BYTES = 64 * 2**20
MAX_BYTES = 2**30


class UnreadBytes:
    """Compares what connections have brought with what was heard of them; owned by the socket's thread.

    Args:
        max_message_bytes: of the longest message there is.
        slack_bytes: what one connection may bring beyond that.
        max_bytes: of all together.
    """

    def __init__(
        self, max_message_bytes: int, slack_bytes: int = SLACK_BYTES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._most = max_message_bytes + slack_bytes
        self._max_bytes = max_bytes
        # By descriptor: what it had brought when it was last heard of.
        self._seen: dict[int, int] = {}
        self._heard: set[int] = set()
        self._suspects: set[int] = set()

    def heard(self, descriptor: int) -> None:
        """A connection has brought a whole message."""
        self._heard.add(descriptor)

    def opened(self, descriptor: int) -> None:
        """A connection has begun; what was known of one with this descriptor is over."""
        self._seen.pop(descriptor, None)
        self._heard.discard(descriptor)
        self._suspects.discard(descriptor)

    def check(self, received: Mapping[int, int]) -> list[int]:
        """Return the connections that have to end.

        Args:
            received: how many bytes each connection has brought since it began, by descriptor.
        """
        self._seen = {
            descriptor: size if descriptor in self._heard else self._seen.get(descriptor, 0)
            for descriptor, size in received.items()
        }
        self._heard.clear()
        unread = {descriptor: size - self._seen[descriptor] for descriptor, size in received.items()}
        over = {descriptor for descriptor, size in unread.items() if size > self._most}
        if sum(unread.values()) > self._max_bytes:
            over.add(max(unread, key=lambda descriptor: unread[descriptor]))
        # A loop that stood still has not had the time to hear of anybody: only the second time counts.
        ending = over & self._suspects
        self._suspects = over - ending
        return sorted(ending)

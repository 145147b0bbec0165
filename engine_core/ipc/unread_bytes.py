"""Which connections send bytes without end that never complete a message? No I/O.

A message may have many frames, and libzmq keeps them all until the last one has arrived. Neither its limit on
message size, which applies to single frames, nor any of its queues counts them.

bytes since the last message        once                    twice in a row
within the limit                    -                       -
one above its own limit             suspect                 it has to end
all together above theirs           the largest: suspect    it has to end
"""

from __future__ import annotations

from collections.abc import Mapping

# Beyond one message: what the kernel and libzmq buffer, and what a subscriber sends that nobody reads.
SLACK_BYTES = 64 * 2**20
MAX_BYTES = 2**30


class UnreadBytes:
    """Compares the bytes received per connection with the messages read; owned by the socket's thread.

    Args:
        max_message_bytes: size of the largest valid message.
        slack_bytes: bytes one connection may send beyond that.
        max_bytes: limit for all connections together.
    """

    def __init__(
        self, max_message_bytes: int, slack_bytes: int = SLACK_BYTES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._most = max_message_bytes + slack_bytes
        self._max_bytes = max_bytes
        # By descriptor: the bytes it had sent when its last message was read.
        self._seen: dict[int, int] = {}
        self._heard: set[int] = set()
        self._suspects: set[int] = set()

    def heard(self, descriptor: int) -> None:
        """A whole message was read from a connection."""
        self._heard.add(descriptor)

    def opened(self, descriptor: int) -> None:
        """A connection was opened; forget the earlier one with this descriptor."""
        self._seen.pop(descriptor, None)
        self._heard.discard(descriptor)
        self._suspects.discard(descriptor)

    def check(self, received: Mapping[int, int]) -> list[int]:
        """Return the connections that have to end.

        Args:
            received: bytes received on each connection since it was opened, by descriptor.
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
        # A loop that was stalled has had no time to read any message: only the second time counts.
        ending = over & self._suspects
        self._suspects = over - ending
        return sorted(ending)

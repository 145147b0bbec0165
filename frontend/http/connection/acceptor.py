"""Accepts on a socket shared by the frontends of a launch, so that each gets its share of connections.

The kernel wakes every frontend for a new connection, and the first one to react would take all that are
waiting. So each takes one only while no other has clearly fewer open; otherwise it leaves it to that one:

    state     readable                        2 ms later, others have fewer     nobody has fewer
    READING   take connections while nobody   -                                 -
              has fewer, else HOLDING
    HOLDING   not asked                       HOLDING; the 4th time READING,    READING
                                              with one connection taken

A frontend that had fewer and took none meanwhile may be stopped or busy: the others do not wait for it again
until its count has changed. So no connection waits longer than a few milliseconds, even if a frontend hangs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from splitserve.engine_core.ipc.connection_counts import ABSENT, NOT_SERVING, ConnectionCounts

HOLD_S = 0.002
MAX_HOLDS = 4
# After an error such as too many open files.
RETRY_S = 0.5
# Then the loop serves the open connections.
MAX_ACCEPTS_PER_TURN = 64
# A difference of one connection, or of an eighth with hundreds open, is not worth waiting for.
SLACK_SHARE = 8


class Acceptor:
    """Accepts connections on a shared listening socket; belongs to the running event loop.

    It has the methods of an asyncio.Server that uvicorn calls.
    """

    def __init__(
        self,
        listener: socket.socket,
        counts: ConnectionCounts,
        number: int,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Start accepting.

        Args:
            listener: shared; the caller closes it.
            counts: connection counts of all frontends of the launch.
            number: this frontend's number, from 1 on.
            make_protocol: called for each connection.
            tls: TLS settings, None for plain text.
        """
        self._listener = listener
        self._counts = counts
        self._number = number
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._num_taken = 0
        self._num_holds = 0
        self._timer: asyncio.TimerHandle | None = None
        # Frontend number -> its count when it did not take the connection left to it.
        self._passed: dict[int, int] = {}
        listener.setblocking(False)
        self._publish()
        self._read()

    def on_closed(self) -> None:
        """Count the end of a connection."""
        self._num_taken -= 1
        self._publish()

    def close(self) -> None:
        """Stop accepting; accepted connections continue."""
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        self._is_closed = True
        self._publish()

    async def wait_closed(self) -> None:
        """Return at once: the owner of the accepted connections waits for them."""

    def _publish(self) -> None:
        self._counts[self._number] = NOT_SERVING if self._is_closed else self._num_taken

    def _read(self) -> None:
        self._num_holds, self._timer = 0, None
        self._loop.add_reader(self._listener, self._on_readable)

    def _on_readable(self) -> None:
        if self._accept_share():
            self._loop.remove_reader(self._listener)
            self._hold()

    def _accept_share(self) -> bool:
        """Accept connections while no other frontend has fewer open; return whether one has."""
        for _ in range(MAX_ACCEPTS_PER_TURN):
            if self._emptier():
                return True
            if not self._accept():
                return False
        return False

    def _emptier(self) -> list[int]:
        """Return the frontends that should accept before this one."""
        counts = self._counts
        others = [
            number
            for number in range(1, len(counts) + 1)
            if number != self._number and counts[number] not in (*ABSENT, self._passed.get(number))
        ]
        lowest = min((counts[number] for number in others), default=0)
        if not others or counts[self._number] <= lowest + 1 + lowest // SLACK_SHARE:
            return []
        return [number for number in others if counts[number] < counts[self._number]]

    def _hold(self) -> None:
        self._timer = self._loop.call_later(HOLD_S, self._on_held)

    def _on_held(self) -> None:
        self._num_holds += 1
        emptier = self._emptier()
        if emptier and self._num_holds < MAX_HOLDS:
            self._hold()
            return
        self._timer = None
        seen = {number: self._counts[number] for number in emptier}
        if emptier and self._accept():
            self._passed |= seen
        if self._timer is None:
            self._read()

    def _accept(self) -> bool:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError:
            # Out of descriptors or memory: retrying at once would only spin.
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(RETRY_S, self._read)
            return False
        connection.setblocking(False)
        self._num_taken += 1
        self._publish()
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls)
        except OSError:
            # The client left during the handshake, or does not speak TLS; its protocol has not started.
            connection.close()
            self.on_closed()

"""The worker's end of the link to its engine, and to the next one when the first is gone."""

from __future__ import annotations

import math
import os
import time

import zmq

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import encode, to_worker_decoder
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.worker_messages import Adopt, FromWorkerMessage, WorkerWaiting
from splitserve.engine_core.kept.processes import has_ended
from splitserve.engine_core.settings.worker_settings import WorkerPlace

# How often a waiting worker checks that its engine is still alive.
_ENGINE_CHECK_MS = 100
_LAST_WORDS_MS = 2000


class EngineGoneError(Exception):
    """The engine of this worker has ended."""


class EngineLink:
    """A DEALER socket whose identity is the rank; single-threaded.

    The engine is the parent process, until adopt() names another.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        place: WorkerPlace,
        parent_pid: int,
        keys: ClientKeys | None = None,
    ) -> None:
        """Connect; the engine need not have bound its socket yet.

        Raises:
            ConfigError: libzmq rejects the address.
        """
        self._context = context
        self._place = place
        self._keys = keys
        self._parent_pid = parent_pid
        # Of an engine that is not the parent.
        self._pidfd = -1
        self._socket = self._connect()

    def send(self, message: FromWorkerMessage) -> None:
        """Send one message, blocking while the engine is not connected or cannot keep up.

        Raises:
            EngineGoneError: the engine exited in the meantime.
        """
        frame = encode(message)
        while True:
            try:
                return self._socket.send(frame)
            except zmq.Again:
                self.check_engine()

    def receive(self) -> bytes:
        """Wait for the next frame.

        Raises:
            EngineGoneError: the engine exited in the meantime.
        """
        while True:
            try:
                return self._socket.recv()
            except zmq.Again:
                self.check_engine()

    def has_message(self) -> bool:
        """Whether receive() would return at once."""
        events = self._socket.getsockopt(zmq.EVENTS)
        return isinstance(events, int) and bool(events & zmq.POLLIN)

    def await_any(self, *fds: int) -> None:
        """Wait for a frame or for a file descriptor to become readable.

        Raises:
            EngineGoneError: the engine exited in the meantime.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd in fds:
            poller.register(fd, zmq.POLLIN)
        while not poller.poll(_ENGINE_CHECK_MS):
            self.check_engine()

    def check_engine(self) -> None:
        """Raise EngineGoneError if the engine has ended."""
        is_adopted = self._pidfd >= 0
        if has_ended(self._pidfd) if is_adopted else os.getppid() != self._parent_pid:
            raise EngineGoneError

    def find_successor(self, words: WorkerWaiting, wait_s: float) -> bool:
        """Wait until another engine takes this worker over; what the last one sent is dropped.

        Args:
            words: said to whoever binds the address.
            wait_s: longest wait.

        Returns:
            Whether one has, and is the engine from now on.
        """
        self._forget_engine()
        end_s = time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            # A new one each time: what was said to an engine that died meanwhile was said to nobody.
            self._socket.close(linger=0)
            self._socket = self._connect()
            adopt = self._introduce(words, left_s)
            if adopt is not None and self._watch(adopt.engine_pid):
                return True
        return False

    def close(self) -> None:
        """Close once pending messages are sent, or after two seconds."""
        self._forget_engine()
        self._socket.close(linger=_LAST_WORDS_MS)

    def _connect(self) -> zmq.Socket[bytes]:
        rank = str(self._place.rank).encode()
        made = connect_engine(self._context, self._place.connect, rank, self._keys, retry_max_ms=0)
        made.setsockopt(zmq.RCVTIMEO, _ENGINE_CHECK_MS)
        made.setsockopt(zmq.SNDTIMEO, _ENGINE_CHECK_MS)
        return made

    def _introduce(self, words: WorkerWaiting, timeout_s: float) -> Adopt | None:
        """Say what waits here; return the answer, None if the connection or the time ends first."""
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._socket.send(encode(words))
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(monitor, zmq.POLLIN)
            if self._socket not in dict(poller.poll(math.ceil(timeout_s * 1000))):
                return None
            message = to_worker_decoder.decode(self._socket.recv())
            return message if isinstance(message, Adopt) else None
        except (zmq.Again, ProtocolError):
            return None
        finally:
            self._socket.disable_monitor()

    def _watch(self, engine_pid: int) -> bool:
        """Make a process the engine; False if it has ended."""
        try:
            self._pidfd = os.pidfd_open(engine_pid)
        except OSError:
            return False
        return True

    def _forget_engine(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

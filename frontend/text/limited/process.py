"""One process that is held to limits, as its parent sees it: started, asked, given up on.

start()    -> ready
exchange() -> an answer; the process goes on
           -> ProcessTimeoutError, ProcessEndedError: it is to be killed, and a new one has to be started
"""

from __future__ import annotations

import signal
import socket
import time
from typing import NamedTuple

from splitserve.engine_core.kept.processes import is_stopped
from splitserve.engine_core.process.children import Child, describe_exit, python_module

# The longest words that a process says of what it refuses.
MAX_WORDS_BYTES = 65536
_REAP_S = 10.0


class ProcessLimits(NamedTuple):
    """What a process may take.

    Attributes:
        start_s: seconds until it is ready; a busy machine may need many.
        cpu_s: CPU seconds of one request, for a process that nobody kills any more.
        memory_bytes: its address space, interpreter included.
    """

    start_s: float
    cpu_s: float
    memory_bytes: int


class ProcessTimeoutError(Exception):
    """The answer took longer than the limit; the message says so, without a subject."""


class ProcessEndedError(Exception):
    """The process ended, was stopped, or never was; the message says how. Perhaps the request's doing."""


class LimitedProcess:
    """One process; used by the one thread that starts it, as the kernel ends it together with that."""

    def __init__(self, module: str, limits: ProcessLimits) -> None:
        """Start it.

        Args:
            module: its name; it runs splitserve.frontend.text.limited.child.main().
            limits: it is held to.

        Raises:
            ProcessEndedError: it cannot be started, ends at once or is not ready in time.
        """
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = _start(module, theirs.fileno(), limits)
        except OSError as error:
            self._socket.close()
            raise ProcessEndedError(f"it cannot be started: {error}") from None
        try:
            self._await_start(limits.start_s)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def exchange(self, body: bytes, max_answer_bytes: int, timeout_s: float) -> tuple[bytes, str]:
        """Send one request and return what the answer begins with and its text.

        Args:
            body: as the module reads it.
            max_answer_bytes: most bytes of the answer; words of a refusal have room anyway.
            timeout_s: seconds until the answer is there.

        Raises:
            ProcessTimeoutError, ProcessEndedError: kill() the process.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(len(body).to_bytes(8, "little") + body)
        except TimeoutError:
            raise self._timeout(timeout_s) from None
        except OSError:
            raise self._ended() from None
        return self._receive(max(max_answer_bytes, MAX_WORDS_BYTES), deadline_s, timeout_s)

    def end(self) -> None:
        """Make it end, whatever it is doing; for any thread. kill() is still to be called."""
        self._child.signal(signal.SIGKILL)

    def kill(self) -> None:
        """End it and release what it holds; safe to call twice."""
        self.end()
        self._socket.close()
        self._child.wait(_REAP_S)
        self._child.close()

    def _await_start(self, start_s: float) -> None:
        try:
            self._receive(MAX_WORDS_BYTES, time.monotonic() + start_s, start_s)
        except ProcessTimeoutError:
            raise ProcessEndedError(f"it did not start within {start_s:g} s") from None

    def _receive(self, max_bytes: int, deadline_s: float, timeout_s: float) -> tuple[bytes, str]:
        head = self._receive_exactly(9, deadline_s, timeout_s)
        size = int.from_bytes(head[1:], "little")
        if size > max_bytes:
            raise ProcessEndedError(f"it answered with {size} bytes")
        data = self._receive_exactly(size, deadline_s, timeout_s)
        try:
            return bytes(head[:1]), data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise ProcessEndedError("its response was not text") from None

    def _receive_exactly(self, size: int, deadline_s: float, timeout_s: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 1e-3))
                num_read = self._socket.recv_into(view)
            except TimeoutError:
                raise self._timeout(timeout_s) from None
            except OSError:
                num_read = 0
            if not num_read:
                raise self._ended()
            view = view[num_read:]
        return data

    def _timeout(self, timeout_s: float) -> ProcessTimeoutError | ProcessEndedError:
        if is_stopped(self._child.pid):
            # That is no request's doing.
            return ProcessEndedError("it was stopped by a signal")
        return ProcessTimeoutError(f"took longer than {timeout_s:g} s")

    def _ended(self) -> ProcessEndedError:
        code = self._child.wait(_REAP_S)
        return ProcessEndedError("it hung up" if code is None else describe_exit(code))


def _start(module: str, fd: int, limits: ProcessLimits) -> Child:
    # The kernel's limit counts in whole seconds.
    return Child(
        [*python_module(module), str(fd), str(limits.memory_bytes), str(limits.cpu_s + 1)],
        death_signal=signal.SIGKILL,
        pass_fds=(fd,),
    )

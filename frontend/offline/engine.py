"""The engine-core process that an offline LLM starts, and its error message if it fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence

from splitserve.engine_core.errors import (
    EXIT_CONFIG,
    EXIT_MODEL,
    ConfigError,
    EngineUnavailableError,
    ModelLoadError,
    SplitServeError,
)
from splitserve.engine_core.ipc.addresses import ipc_path
from splitserve.engine_core.kept.folder import end_kept_workers
from splitserve.engine_core.process.children import Child, describe_exit, python_module
from splitserve.engine_core.process.heartbeats import HeartbeatPage, HeartbeatWatch
from splitserve.frontend.offline.engine_output import EngineOutput

STOP_TIMEOUT_S = 15.0
_REAP_POLL_S = 0.005
_MAX_ADDRESS_CHARS = 100
_EXIT_ERRORS: dict[int, type[SplitServeError]] = {EXIT_CONFIG: ConfigError, EXIT_MODEL: ModelLoadError}


def private_address() -> str:
    """Return an ipc address in a directory that does not exist yet: the engine makes and removes it."""
    name = f"splitserve-{secrets.token_hex(8)}/engine.sock"
    address = f"ipc://{tempfile.gettempdir()}/{name}"
    # A socket's path may have 107 bytes.
    return address if len(address) <= _MAX_ADDRESS_CHARS else f"ipc:///tmp/{name}"


class EngineProcess:
    """One engine-core child; belongs to the event loop that made it.

    The kernel ends the child when the thread that made it ends, however that comes; so this must be a thread
    that lives as long as the engine is wanted.

    Attributes:
        address: where it listens.
    """

    def __init__(self, flags: Sequence[str], address: str = "") -> None:
        """Start it.

        Args:
            flags: engine-core's flags besides --listen.
            address: where a predecessor listened that has ended; its workers may wait there.

        Raises:
            OSError: it cannot be started.
            ConfigError: the system is out of memory or file descriptors.
        """
        self.address = address or private_address()
        self._output = EngineOutput()
        page = HeartbeatPage.create(1)
        self._watch = HeartbeatWatch(page)
        shared = ["--listen", self.address, f"--heartbeat-fd={page.fd}"]
        argv = [*python_module("splitserve.engine_core.cli"), *shared, *flags]
        try:
            self._child = Child(argv, death_signal=signal.SIGTERM, pass_fds=(page.fd,), capture_output=True)
        finally:
            # The memory stays mapped.
            os.close(page.fd)
        self._failure: SplitServeError | None = None
        self._loop = asyncio.get_running_loop()
        self._output_fd = self._child.output_fd
        self._loop.add_reader(self._output_fd, self._on_output)
        self._output_ended = asyncio.Event()

    @property
    def pid(self) -> int:
        """Process id of the engine-core."""
        return self._child.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._child.poll() is not None

    def failure(self) -> SplitServeError | None:
        """Return why it ended, from its own error message; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        if self._failure is None:
            said = self._output.error()
            words = [f"the engine-core process ended with {describe_exit(code)}", *self._output.tail]
            kind = _EXIT_ERRORS.get(code, EngineUnavailableError)
            self._failure = kind(said) if said is not None else EngineUnavailableError("\n".join(words))
        return self._failure

    async def wait_end(self, timeout_s: float) -> bool:
        """Wait until it has ended and all its output is read; return whether that happened in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._output_ended.wait()
                # The pipe ends a moment before the process can be waited for.
                while not self.ended:
                    await asyncio.sleep(_REAP_POLL_S)
        return self.ended

    def kill_if_hung(self) -> None:
        """Kill it if its loop stands still; to be called every LOOK_INTERVAL_S."""
        if self._watch.look(self._loop.time()):
            self._child.signal(signal.SIGKILL)

    def leave(self) -> None:
        """Release what is left of a process that has ended, for a successor at the same address."""
        self._stop_reading()
        _show(self._output.finish())
        self._child.close()

    async def stop(self) -> None:
        """Shut it down, by force if that takes too long; its output is read to the end."""
        self._child.signal(signal.SIGTERM)
        if not await self.wait_end(STOP_TIMEOUT_S):
            self._child.signal(signal.SIGKILL)
            self._child.wait(STOP_TIMEOUT_S)
        self.leave()
        # Of an engine that was killed.
        end_kept_workers(self.address)
        # An engine that shut down cleanly has already removed it.
        shutil.rmtree(os.path.dirname(ipc_path(self.address)), ignore_errors=True)

    def _on_output(self) -> None:
        data = self._child.read_output()
        if not data and self._child.output_fd < 0:
            self._stop_reading()
            return
        _show(self._output.push(data))

    def _stop_reading(self) -> None:
        if self._output_fd >= 0:
            self._loop.remove_reader(self._output_fd)
            self._output_fd = -1
        self._output_ended.set()


def _show(data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()

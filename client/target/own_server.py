"""A private server for one command: `splitserve serve` at a Unix socket that nobody else can reach."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import tempfile
import threading
from types import TracebackType

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.process.children import Child, describe_exit, python_module

DEMO_NAME = "splitserve-demo"
END_TIMEOUT_S = 30.0
READY = b"SplitServe is ready after"


class OwnServer:
    """Starts a server and waits until it serves; ends it with the `with` block, or with this process.

    Use it in the main thread. What it says while it starts is shown on stderr.

    Args:
        model: as for `splitserve serve`; "" or the demo model's name is the demo model.
        flags: further flags of `splitserve serve`, in one string.
    """

    def __init__(self, model: str, flags: str = "") -> None:
        # A directory that only this user can enter: whoever reaches the socket can use the model.
        self._folder = tempfile.TemporaryDirectory(prefix="splitserve-own-")
        self._path = os.path.join(self._folder.name, "api.sock")
        words = [] if model in ("", DEMO_NAME) else [model]
        self._command = [
            *python_module("splitserve.engine_core.launcher.cli"),
            # Whoever asked for an answer is told what is wrong, not how the server fares.
            *("serve", *words, f"--uds={self._path}", "--log-level=warning", *shlex.split(flags)),
        ]
        self._child: Child | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._serves = False

    @property
    def url(self) -> str:
        """The server, as `--url` takes it."""
        return f"unix:{self._path}"

    def __enter__(self) -> OwnServer:
        self._child = Child(self._command, death_signal=signal.SIGTERM, capture_output=True)
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()
        try:
            self._ready.wait()
            if not self._serves:
                code = self._child.wait(END_TIMEOUT_S)
                how = describe_exit(code) if code is not None else "it closed its output"
                raise EngineUnavailableError(f"the server of this command did not start ({how})")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        child = self._child
        if child is not None:
            child.signal(signal.SIGTERM)
            if child.wait(END_TIMEOUT_S) is None:
                child.signal(signal.SIGKILL)
                child.wait(END_TIMEOUT_S)
            if self._reader is not None:
                self._reader.join(END_TIMEOUT_S)
            child.close()
            self._child = None
        self._folder.cleanup()

    def _read(self, child: Child) -> None:
        """Keep the pipe empty until its end; what comes is shown until the server is ready."""
        poll = select.poll()
        poll.register(child.output_fd, select.POLLIN)
        seen = b""
        while child.output_fd >= 0:
            poll.poll()
            data = child.read_output()
            if self._ready.is_set():
                continue
            seen += data
            *lines, seen = seen.split(b"\n")
            for line in lines:
                if line.startswith(READY):
                    self._serves = True
                    self._ready.set()
                    break
                if line:
                    print(line.decode(errors="replace"), file=sys.stderr, flush=True)
        self._ready.set()

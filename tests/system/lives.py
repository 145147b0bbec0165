"""Several lives of an engine-core at one address, one after another, with real workers of the demo model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import zmq

from splitserve.engine_core.ipc.messages import Ready
from splitserve.engine_core.ipc.transport import connect_engine
from tests.engine_core.processes import wait_ended
from tests.engine_core.server.harness import ROOT, RawClient

DEADLINE_S = 60.0


class Lives:
    """Starts engines in a runtime directory of their own.

    Attributes:
        address: that all of them listen on.
    """

    def __init__(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]], flags: tuple[str, ...]) -> None:
        self.folder = folder
        self.address = f"ipc://{folder}/run/engine.sock"
        self._context = context
        self._flags = flags
        self._engines: list[subprocess.Popen[bytes]] = []
        self._clients: list[RawClient] = []
        self._workers: set[psutil.Process] = set()

    @property
    def engine(self) -> subprocess.Popen[bytes]:
        """The last one that was started."""
        return self._engines[-1]

    def start(self, *flags: str, kill_point: str = "") -> subprocess.Popen[bytes]:
        """Start another engine, whatever became of the others."""
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder), "SPLITSERVE_KILL_POINT": kill_point}
        argv = [sys.executable, "-P", "-m", "splitserve.engine_core.cli", "--listen", self.address]
        argv += ["--num-threads=1", "--num-blocks=400", *self._flags, *flags]
        with open(self._log(len(self._engines)), "wb") as log:
            popen = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )
        self._engines.append(popen)
        return popen

    def client(self) -> RawClient:
        """Return a frontend that has joined the engine of now."""
        client = RawClient(connect_engine(self._context, self.address, b"raw-" + os.urandom(4)))
        self._clients.append(client)
        client.hello()
        # To import torch alone takes many seconds on a busy machine.
        while not isinstance(client.receive(DEADLINE_S), Ready):
            pass
        return client

    def record(self) -> list[psutil.Process]:
        """Return the workers that the folder names, by rank."""
        (path,) = self.folder.glob("splitserve/workers-*/group.json")
        workers = [psutil.Process(name["pid"]) for name in json.loads(path.read_text())["workers"]]
        self._workers.update(workers)
        return workers

    def kill(self) -> None:
        """Kill the engine of now, as kill -9 does."""
        self.engine.kill()
        self.engine.wait()

    def log(self) -> str:
        """What the last engine, and its workers by way of it, wrote."""
        return self._log(len(self._engines) - 1).read_text(errors="replace")

    def end(self) -> None:
        for client in self._clients:
            client.close()
        for engine in self._engines:
            if engine.poll() is None:
                engine.kill()
            engine.wait()
        for worker in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        assert wait_ended(self._workers, DEADLINE_S) == []

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}"


@contextlib.contextmanager
def lives(*flags: str) -> Iterator[Lives]:
    """Make a place for engines with these flags in common; afterwards none of their processes is left."""
    with tempfile.TemporaryDirectory(prefix="ssl-") as folder, zmq.Context() as context:
        made = Lives(Path(folder), context, flags)
        try:
            yield made
        finally:
            made.end()

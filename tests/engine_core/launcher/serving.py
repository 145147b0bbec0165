"""A real `splitserve serve` over the simulated executor, with its output as events."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.engine_core.launcher.tiny_model import write_tiny_model
from tests.engine_core.processes import wait_ended
from tests.frontends import ready_frontends

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0
ENGINE, FRONTEND = "splitserve.engine_core.cli", "splitserve.frontend.cli"

Accept = Callable[[list[psutil.Process]], bool]


@dataclass
class Serving:
    """A started `splitserve serve` and everything it has printed so far."""

    popen: subprocess.Popen[bytes]
    folder: Path
    output: str = ""
    _seen: list[psutil.Process] = field(default_factory=list)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read what it prints until the pattern is in it."""
        end_s = time.monotonic() + DEADLINE_S
        while (match := re.search(pattern, self.output)) is None:
            assert self.read(end_s), f"never printed {pattern!r}:\n{self.output}"
        return match

    def read(self, end_s: float) -> bool:
        """Wait for more output; False at its end or at the deadline."""
        assert self.popen.stdout is not None
        # Unlike select(), it takes descriptors over 1,023, of which a long run of tests may have many.
        poll = select.poll()
        poll.register(self.popen.stdout, select.POLLIN)
        if not poll.poll(1000 * max(0.0, end_s - time.monotonic())):
            return False
        data = os.read(self.popen.stdout.fileno(), 65536)
        self.output += data.decode(errors="replace")
        return bool(data)

    def read_to_end(self) -> int:
        """Read until every process that shares the output has ended; return the exit code."""
        end_s = time.monotonic() + DEADLINE_S
        while self.read(end_s):
            pass
        return self.popen.wait(DEADLINE_S)

    def url(self) -> str:
        """Wait for the banner; return the base URL."""
        self.wait_for("is ready after")
        return self.wait_for(r"API     (\S+)/v1")[1]

    def children(self, module: str) -> list[psutil.Process]:
        """Its child processes that run a module, in order of start."""
        found = [
            child
            for child in psutil.Process(self.popen.pid).children(recursive=True)
            if _words(child)[1:4] == ["-P", "-m", module]
        ]
        self._seen += found
        return sorted(found, key=lambda child: child.create_time())

    def engine(self) -> psutil.Process:
        """The engine-core that serves, or is to; a spare one is younger."""
        return self.children(ENGINE)[0]

    def spare(self) -> psutil.Process:
        """Wait for the spare engine-core that follows."""
        return self.children_when(ENGINE, lambda found: len(found) == 2)[1]

    def children_when(self, module: str, accept: Accept) -> list[psutil.Process]:
        """Wait until the child processes of a module are as expected."""
        end_s = time.monotonic() + DEADLINE_S
        while not accept(found := self.children(module)):
            # Most starts are announced by a line of output.
            self.read(min(end_s, time.monotonic() + 0.05))
            assert time.monotonic() < end_s, self.output
        return found

    def complete(self, url: str) -> str:
        """Ask for a completion on a connection of its own."""
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 8, "seed": 1, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def complete_until(self, url: str, text: str) -> None:
        """Ask until the answer is right; while an engine is down it is 503."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(AssertionError, httpx.TransportError):
                assert self.complete(url) == text
                return
            assert time.monotonic() < end_s, self.output
            self.read(time.monotonic() + 0.1)

    def wait_all_ready(self, url: str, num_frontends: int) -> None:
        """Wait until so many frontends of the shared port are ready; one that starts may refuse requests."""
        end_s = time.monotonic() + DEADLINE_S
        while len(found := ready_frontends(url, DEADLINE_S)) < num_frontends:
            assert time.monotonic() < end_s, f"only {found} are ready:\n{self.output}"
            self.read(time.monotonic() + 0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it; return its exit code once nothing of it runs."""
        self.popen.send_signal(number)
        return self.read_to_end()


def _words(process: psutil.Process) -> list[str]:
    """Return its command line, nothing once it has ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def serving(*flags: str, port: str = "0") -> Iterator[Serving]:
    """Start it in a folder of its own; afterwards neither processes nor files of it may be left."""
    with tempfile.TemporaryDirectory(prefix="sv-") as name:
        folder = Path(name)
        write_tiny_model(folder / "model")
        (folder / "run").mkdir(mode=0o700)
        (folder / "tmp").mkdir()
        model = [str(folder / "model"), "--executor", "simulated", "--served-model-name", "tiny"]
        popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "splitserve.engine_core.launcher.cli",
                "serve",
                *model,
                "--port",
                port,
                *flags,
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_RUNTIME_DIR": f"{name}/run", "TMPDIR": f"{name}/tmp"},
        )
        server = Serving(popen, folder)
        try:
            yield server
        finally:
            _end(server)
        left = [path for part in ("run", "tmp") for path in (folder / part).rglob("*")]
        assert left == [], f"left behind: {left}\n{server.output}"


def _end(server: Serving) -> None:
    popen = server.popen
    started = psutil.Process(popen.pid).children(recursive=True) if popen.poll() is None else []
    if popen.poll() is None:
        popen.terminate()
    try:
        server.read_to_end()
    finally:
        assert popen.stdout is not None
        popen.stdout.close()
        alive = wait_ended([*started, *server._seen], DEADLINE_S)
        for process in alive:
            process.kill()
        if popen.poll() is None:
            popen.kill()
            popen.wait()
    assert alive == [], f"outlived the server: {alive}\n{server.output}"

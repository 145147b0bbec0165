"""Real engine-core, api-frontend and splitserve processes for system tests, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import httpx
import psutil

from tests.frontends import ready_frontends

ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass
class Process:
    """A started command, its log file and how it is ended."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal and wait; a process that does not end in time is killed and fails the test."""
        if self.popen.poll() is None:
            self.popen.send_signal(sig)
        try:
            return self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in self.children():
                    child.kill()
            self.popen.kill()
            self.popen.wait()
            raise AssertionError(f"did not end within {STOP_TIMEOUT_S} s:\n{self.text()}") from None


@contextlib.contextmanager
def run(
    log: Path,
    *args: str,
    env: Mapping[str, str] = NO_ENV,
    pass_fds: tuple[int, ...] = (),
    cwd: Path = ROOT,
) -> Iterator[Process]:
    """Start a command of this project (`python -P -m MODULE ...`); it is stopped when the block ends.

    `env` is added to the environment; XDG_RUNTIME_DIR says where sockets are made. It inherits `pass_fds`.
    """
    with log.open("wb") as stream:
        popen = subprocess.Popen(
            [sys.executable, "-P", "-m", *args],
            cwd=cwd,
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            pass_fds=pass_fds,
        )
    process = Process(popen, log)
    try:
        yield process
    finally:
        process.stop()


def wait_ready(url: str, *processes: Process) -> None:
    """Wait until GET /ready answers 200 and names no engine that is not ready; see _wait_until."""

    def ready() -> bool:
        answer = httpx.get(f"{url}/ready", timeout=5)
        return answer.status_code == 200 and all(e["state"] == "ready" for e in answer.json()["engines"])

    _wait_until(ready, *processes)


def wait_all_ready(url: str, num_frontends: int, server: Process) -> None:
    """Wait until so many api-frontends of one `splitserve serve` are ready."""
    _wait_until(lambda: len(ready_frontends(url, 5)) == num_frontends, server)


def _wait_until(condition: Callable[[], bool], *processes: Process) -> None:
    """Wait for something; nobody may answer yet, but a process that ends fails at once, with its log."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for process in processes:
            if process.popen.poll() is not None:
                raise AssertionError(f"exited with {process.popen.returncode}:\n{process.text()}")
        with contextlib.suppress(httpx.TransportError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError("not ready:\n" + "\n".join(process.text() for process in processes))


@dataclass
class Server:
    """One engine-core and one api-frontend over it."""

    url: str
    address: str
    engine: Process
    frontend: Process

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@contextlib.contextmanager
def frontend(
    folder: Path, *engines: str, flags: tuple[str, ...] = (), env: Mapping[str, str] = NO_ENV
) -> Iterator[tuple[str, Process]]:
    """An api-frontend over the given engines; yields its URL and the process, not waited for.

    It inherits its listening socket: a port that is only known to be free may be another's a moment later.
    """
    with contextlib.ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, fd = listener.getsockname()[1], listener.fileno()
            args = ["splitserve.frontend.cli", "--fd", str(fd), *flags]
            for address in engines:
                args += ["--engine", address]
            log = folder / f"frontend-{port}.log"
            process = stack.enter_context(run(log, *args, env=env, pass_fds=(fd,)))
        yield f"http://127.0.0.1:{port}", process


@contextlib.contextmanager
def serve_command(
    log: Path, *flags: str, runtime_dir: str = "", env: Mapping[str, str] = NO_ENV, cwd: Path = ROOT
) -> Iterator[tuple[str, Process]]:
    """`splitserve serve` on a port of its own; yields its URL and the process, not waited for."""
    if runtime_dir:
        env = {**env, "XDG_RUNTIME_DIR": runtime_dir}
    args = ("splitserve.engine_core.launcher.cli", "serve", "--port", "0", *flags)
    with run(log, *args, env=env, cwd=cwd) as process:
        _wait_until(lambda: " listening on " in process.text(), process)
        (url,) = re.findall(r" listening on (http://\S+)\n", process.text())
        yield url, process


@contextlib.contextmanager
def engine(folder: Path, *flags: str) -> Iterator[tuple[str, Process]]:
    """An engine-core on an ipc address in `folder`; yields the address and the process, not waited for."""
    address = f"ipc://{folder}/engine.sock"
    with run(folder / "engine.log", "splitserve.engine_core.cli", "--listen", address, *flags) as process:
        yield address, process


@contextlib.contextmanager
def serve(
    folder: Path, engine_flags: tuple[str, ...] = (), frontend_flags: tuple[str, ...] = ()
) -> Iterator[Server]:
    """An engine-core (the demo model unless flags say otherwise) and one api-frontend, ready to answer."""
    with (
        engine(folder, *engine_flags) as (address, engine_process),
        frontend(folder, address, flags=frontend_flags) as (url, frontend_process),
    ):
        wait_ready(url, engine_process, frontend_process)
        yield Server(url, address, engine_process, frontend_process)

"""The processes of one server, whoever their parent is by now, and what may be done to them."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.system.processes import NO_ENV, Process, frontend, run, serve_command, wait_all_ready, wait_ready

# What a process is, by the module that it runs.
MODULES = {
    "serve": "splitserve.engine_core.launcher.cli",
    "engine-core": "splitserve.engine_core.cli",
    "worker": "splitserve.worker.cli",
    "api-frontend": "splitserve.frontend.cli",
    "template renderer": "splitserve.frontend.text.chat.template_child",
}
WAIT_S = 60.0
POLL_S = 0.02


@dataclass
class Stage:
    """A running server of this test alone.

    Attributes:
        folder: for sockets and logs; all processes have it as XDG_RUNTIME_DIR, which is how they are found.
        urls: one per address to which clients may connect.
        processes: those started directly.
        num_frontends: behind each address.
        num_engines, start_engine: of standing(): how many there are; starts the one of a number (again).
    """

    folder: Path
    urls: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    num_frontends: int = 1
    num_engines: int = 0
    start_engine: Callable[[int], None] = lambda _: None

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def order_file(self) -> Path:
        """Where a kill point is ordered: see engine_core/process/kill_points.py."""
        return self.folder / "order"

    def pids(self, kind: str) -> list[int]:
        """Return the living processes of a kind, the oldest first."""
        return [pid for pid, module in self.all_pids().items() if module == MODULES[kind]]

    def all_pids(self) -> dict[int, str]:
        """Return all living processes of this server with their modules, the oldest first."""
        found = {}
        for process in sorted(psutil.process_iter(), key=lambda each: (each.create_time(), each.pid)):
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if "-m" not in command or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("XDG_RUNTIME_DIR") == str(self.folder):
                    found[process.pid] = command[command.index("-m") + 1]
        return found

    def engine(self, number: int) -> Process:
        """Return the engine-core of a number that standing() or start_engine() started last."""
        return next(p for p in reversed(self.processes) if p.log.name.startswith(f"engine-{number}-"))

    def order(self, kill_point: str) -> None:
        """Let the next process that comes by a kill point be struck there; NAME[:COUNT[:SIGNAL]]."""
        for old in self.folder.glob("order*"):
            old.unlink()
        new = self.folder / "new-order"
        new.write_text(kill_point)
        new.rename(self.order_file)

    def struck(self) -> int | None:
        """Return the process that was struck at the place that was ordered last, None if nobody came by."""
        return next((int(path.suffix[1:]) for path in self.folder.glob("order.*")), None)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-20000:] for path in self.folder.glob("**/*.log"))

    def wait_ready(self) -> None:
        """Wait until all engines are ready for every frontend; those of standing() that ended start again."""
        for number in range(self.num_engines):
            if self.engine(number).popen.poll() is not None:
                self.start_engine(number)
        for url in self.urls:
            running = [process for process in self.processes if process.popen.poll() is None]
            wait_ready(url, *running)
            if self.num_frontends > 1:
                wait_all_ready(url, self.num_frontends, running[0])


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it does not come true, and `what` says what.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {timeout_s} s"
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; its parent may not have noticed yet."""
    try:
        return str(psutil.Process(pid).status()) == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def say(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def serving(*flags: str, num_frontends: int = 1, env: Mapping[str, str] = NO_ENV) -> Iterator[Stage]:
    """`splitserve serve`, ready; after the block it is stopped, and nothing of it may be left."""
    with _new_stage() as stage:
        words = ("--api-server-count", str(num_frontends))
        log = stage.folder / "serve.log"
        environment = {"SPLITSERVE_KILL_POINT": f"@{stage.order_file}", **env}
        with serve_command(log, *words, *flags, runtime_dir=str(stage.folder), env=environment) as (
            url,
            process,
        ):
            stage.urls, stage.processes, stage.num_frontends = [url], [process], num_frontends
            stage.wait_ready()
            yield stage


@contextlib.contextmanager
def standing(num_engines: int, num_frontends: int, *flags: str) -> Iterator[Stage]:
    """Engine-cores and api-frontends that were started one by one, ready."""
    with _new_stage() as stage, contextlib.ExitStack() as stack:
        env = {"SPLITSERVE_KILL_POINT": f"@{stage.order_file}", "XDG_RUNTIME_DIR": str(stage.folder)}
        addresses = [f"ipc://{stage.folder}/e{n}/engine.sock" for n in range(num_engines)]

        def start_engine(number: int) -> None:
            args = ("splitserve.engine_core.cli", "--listen", addresses[number], "--engine-id", f"e{number}")
            log = stage.folder / f"engine-{number}-{len(stage.processes)}.log"
            stage.processes.append(stack.enter_context(run(log, *args, *flags, env=env)))

        stage.num_engines, stage.start_engine = num_engines, start_engine
        for number in range(num_engines):
            start_engine(number)
        for _ in range(num_frontends):
            url, process = stack.enter_context(frontend(stage.folder, *addresses, env=env))
            stage.urls.append(url)
            stage.processes.append(process)
        stage.wait_ready()
        yield stage


@contextlib.contextmanager
def _new_stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="sst-") as path:
        stage = Stage(Path(path))
        try:
            yield stage
            wait_for(lambda: not stage.all_pids(), "nothing of the server is left")
        finally:
            for pid in stage.all_pids():
                say(pid, signal.SIGKILL)


def num_ready(stage: Stage) -> int:
    """Return how many of the server's addresses say that they are ready."""
    with contextlib.suppress(httpx.TransportError):
        return sum(httpx.get(f"{url}/ready", timeout=10).status_code == 200 for url in stage.urls)
    return 0

"""Engine-cores and api-frontends of one run: started, watched, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.compare.processes import EngineProcess
from benchmarks.frontend import CONTEXT_TOKENS, write_model
from benchmarks.load.census import Census, census
from benchmarks.load.plan import FloatColumn
from benchmarks.startup import free_port

LIMIT_S = 120.0
POLL_S = 0.05
# A proxy that the environment names cannot reach this machine's own servers.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Layout:
    """What is started.

    Attributes:
        step_ms: duration of every step.
        num_rows: sequences that an engine runs at once.
        num_waiting: requests that may wait for a row.
        max_requests: requests that a frontend lets in.
        shared: every frontend knows every engine; else frontend i knows engine i modulo their number.
        timed: engines note the time of each step, and make text of one character per token.
        log_requests: engines write a line when a request ends.
    """

    num_engines: int
    num_frontends: int
    step_ms: float
    num_rows: int
    num_waiting: int
    max_requests: int
    shared: bool = True
    timed: bool = True
    log_requests: bool = False

    def engine_flags(self) -> list[str]:
        """Return the flags that the engines have in common."""
        flags = {
            "--executor": "simulated",
            "--simulated-step-ms": f"{self.step_ms:g}",
            "--max-num-seqs": str(self.num_rows),
            "--max-num-waiting": str(self.num_waiting),
            "--max-num-batched-tokens": str(self.num_rows + 2048),
            "--num-blocks": str(self.num_rows * CONTEXT_TOKENS // 16 + 4096),
            "--log-wait": "0",
            # Long steps are what was asked for here, and no reason to take prompts in one by one.
            "--target-itl-ms": "0",
            "--log-level": "info" if self.log_requests else "warning",
            "--log-format": "json",
        }
        return [word for flag in flags.items() for word in flag]


class Servers:
    """All processes; ready when made, ended by close().

    Raises:
        EngineError: one has ended.
        TimeoutError: one was not ready in time.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.layout = layout
        self._folder = folder
        write_model(folder)
        self.engines: list[EngineProcess] = []
        self.frontends: list[EngineProcess] = []
        self.ports = [free_port() for _ in range(layout.num_frontends)]
        try:
            for number in range(layout.num_engines):
                self.engines.append(self._start_engine(number))
            for number in range(layout.num_frontends):
                self.frontends.append(self._start_frontend(number))
            self.wait_until(lambda: all(self._all_ready(port) for port in self.ports))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End everything."""
        for process in (*self.frontends, *self.engines):
            process.close()

    def kill_engine(self, number: int) -> None:
        """Kill an engine as a fault would, and start another at its address at once."""
        os.kill(self.engines[number].pid, signal.SIGKILL)
        self.engines[number].close()
        self.engines[number] = self._start_engine(number)

    def steps_s(self, engine: int) -> FloatColumn:
        """When each step of an engine was over, on time.time()."""
        return np.fromfile(self._times(engine), np.float64)

    def log(self, engine: int) -> Path:
        """The log of an engine, one JSON object per line."""
        return self._folder / f"engine-{engine}.log"

    def engine_of(self, port: int) -> int:
        """The engine behind a frontend that knows only one."""
        assert not self.layout.shared or self.layout.num_engines == 1
        return self.ports.index(port) % self.layout.num_engines

    def look(self) -> dict[str, Census]:
        """Look at every process."""
        named = {f"engine {i}": process for i, process in enumerate(self.engines)}
        named |= {f"frontend {i}": process for i, process in enumerate(self.frontends)}
        return {name: census(process.pid) for name, process in named.items()}

    def metric(self, name: str) -> float:
        """Return a metric of the engines, `splitserve:` left out, summed over all that the frontends know."""
        ports = self.ports[:1] if self.layout.shared else self.ports[: self.layout.num_engines]
        pattern = rf"^splitserve:{name}(?:\{{.*\}})? ([0-9.e+-]+)$"
        return sum(
            float(value)
            for port in ports
            for value in re.findall(pattern, self._get(port, "/metrics"), re.MULTILINE)
        )

    def wait_until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait for something that all processes must live to see."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            for process in (*self.engines, *self.frontends):
                process.check_alive()
            with contextlib.suppress(urllib.error.URLError, OSError):
                if condition():
                    return
            time.sleep(POLL_S)
        raise TimeoutError(f"not within {limit_s:g} s")

    def is_idle(self) -> bool:
        """Whether nothing runs or waits and every block is free."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def _all_ready(self, port: int) -> bool:
        engines = json.loads(self._get(port, "/ready"))["engines"]
        return all(engine["state"] == "ready" for engine in engines)

    def _get(self, port: int, path: str) -> str:
        with _DIRECT.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def _address(self, number: int) -> str:
        return f"ipc://{self._folder}/{number}.sock"

    def _times(self, number: int) -> Path:
        return self._folder / f"times-{number}"

    def _start_engine(self, number: int) -> EngineProcess:
        timed = ["benchmarks.load.timed_engine", str(self._times(number))]
        module = timed if self.layout.timed else ["splitserve.engine_core.cli"]
        own = ["--listen", self._address(number), "--model", str(self._folder), "--engine-id", f"e{number}"]
        command = [sys.executable, "-m", *module, *own, *self.layout.engine_flags()]
        return EngineProcess(command, {}, self.log(number), pausable=False)

    def _start_frontend(self, number: int) -> EngineProcess:
        layout = self.layout
        engines = range(layout.num_engines) if layout.shared else [number % layout.num_engines]
        command = [sys.executable, "-m", "splitserve.frontend.cli", "--port", str(self.ports[number])]
        for engine in engines:
            command += ["--engine", self._address(engine)]
        command += ["--max-open-requests", str(layout.max_requests), "--log-level", "warning"]
        return EngineProcess(command, {}, self._folder / f"frontend-{number}.log", pausable=False)

"""The client processes of one run: started with a plan each, watched, stopped, and what they saw."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.compare.processes import ROOT
from benchmarks.frontend import cpu_s
from benchmarks.load.plan import Ask, Plan, Report

LIMIT_S = 600.0


class ClientError(RuntimeError):
    """A client process failed; its traceback is on stderr."""


class Clients:
    """Client processes that share the asks of a plan, one after the other in turns."""

    def __init__(self, folder: Path, plan: Plan, num_processes: int) -> None:
        self._reports = [folder / f"report-{plan.name}-{i}" for i in range(num_processes)]
        self._processes = []
        for i, report in enumerate(self._reports):
            path = folder / f"plan-{plan.name}-{i}"
            own = msgspec.structs.replace(plan, name=f"{plan.name}-{i}", asks=plan.asks[i::num_processes])
            path.write_bytes(msgspec.msgpack.encode(own))
            command = [sys.executable, "-m", "benchmarks.load.client", str(path), str(report)]
            self._processes.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE))

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the clients so far, while they run."""
        return sum(sum(cpu_s(Path(f"/proc/{p.pid}/stat").read_text())) for p in self._processes)

    @property
    def are_running(self) -> bool:
        """Whether one of them is not done yet."""
        return any(process.poll() is None for process in self._processes)

    def stop(self) -> Report:
        """Let them close what is open, and return what they saw.

        Raises:
            ClientError: one has failed.
        """
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        return self.finish()

    def finish(self, limit_s: float = LIMIT_S) -> Report:
        """Wait until all is done, and return what they saw.

        Raises:
            ClientError: one has failed.
            subprocess.TimeoutExpired: it takes longer.
        """
        for process in self._processes:
            if process.wait(limit_s):
                raise ClientError(f"a client ended with {process.returncode}")
            if process.stdin is not None:
                process.stdin.close()
        reports = [msgspec.msgpack.decode(path.read_bytes(), type=Report) for path in self._reports]
        seen = [stream for report in reports for stream in report.seen]
        return Report(seen, sum(report.cpu_s for report in reports))

    def kill(self) -> None:
        """End them without a report; nothing happens to those that have ended."""
        for process in self._processes:
            process.kill()
            process.wait()


def paced(num: int, per_s: float, ports: Sequence[int], num_bodies: int) -> list[Ask]:
    """Return asks at a steady pace, over ports and bodies in turns."""
    return [Ask(i / per_s, ports[i % len(ports)], i % num_bodies) for i in range(num)]

"""How is an engine's process started, paused, watched and ended, with all its children? Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EngineError(RuntimeError):
    """An engine ended, or did not answer in time; the message names its log."""


class EngineProcess:
    """A command in a session of its own, its output in a log.

    Args:
        command: to run in the repository's folder.
        environment: added to that of this process.
        log: file for its output, written anew.
        pausable: whether pause() has an effect.
        pipes: stdin and stdout are pipes; only stderr goes to the log then.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        pausable: bool,
        pipes: bool = False,
    ) -> None:
        self.log = log
        self._pausable = pausable
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The pipe to its stdin."""
        assert self._popen.stdin is not None
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The pipe from its stdout."""
        assert self._popen.stdout is not None
        return self._popen.stdout

    def check_alive(self) -> None:
        """Raise EngineError if it has ended."""
        if self._popen.poll() is not None:
            raise EngineError(f"ended with code {self._popen.returncode}; see {self.log}")

    def pause(self) -> None:
        """Stop its processes, so that they use no CPU while others are measured."""
        if self._pausable:
            os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let its processes go on."""
        if self._pausable:
            os.killpg(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it in order, and by force what is left of it after a while."""
        family = pids(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        if self._popen.stdin is None:
            self._popen.terminate()
        else:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_S)
        if self._popen.poll() is None:
            family = [*family, *pids(self.pid)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


def pids(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and its descendants, in steps of 10 ms."""
    family = set(pids(root))
    return sum(int(f[11]) + int(f[12]) for pid, f in _stats() if pid in family) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Return the CPU seconds of all processes since the machine started."""
    user, nice, system, _, _, irq, softirq = Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
    return sum(map(int, (user, nice, system, irq, softirq))) / _TICKS_PER_S


def pss_bytes(root: int) -> int:
    """Return the memory of a process and its descendants; what they share counts once."""
    total = 0
    for pid in pids(root):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process's id and the fields of its stat file behind the name, the state first."""
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes come and go while we look.
        with contextlib.suppress(OSError):
            yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()

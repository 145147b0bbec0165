"""When did a server tell of a fault, replace what was lost, and take requests again? Seen from outside."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

POLL_S = 0.02
PROBE_TIMEOUT_S = 10.0


@dataclass
class Watch:
    """A thread that looks for new child processes, and one that asks /ready, until the block is left.

    Attributes:
        born_s: when each process was first seen below the parent (time.monotonic), by its id.
        probes: when each probe was sent and answered, and the status; 0 if there was no answer.
    """

    parent: int
    url: str
    born_s: dict[int, float] = field(default_factory=dict)
    probes: list[tuple[float, float, int]] = field(default_factory=list)
    _leaving: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._look()
        self._threads = [threading.Thread(target=each) for each in (self._look_on, self._probe_on)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def replaced_s(self, since_s: float) -> float | None:
        """Return when the first process was seen that was not there at a point in time."""
        return min((born for born in self.born_s.values() if born > since_s), default=None)

    def told_s(self, since_s: float) -> float | None:
        """Return when /ready first said after a point in time that the server is not ready."""
        told = (end for sent, end, status in self.probes if sent > since_s and status != 200)
        return next(told, None)

    def ready_s(self, since_s: float) -> float | None:
        """Return when /ready first said, asked after a point in time, that the server is ready."""
        ready = (end for sent, end, status in self.probes if sent > since_s and status == 200)
        return next(ready, None)

    def _look_on(self) -> None:
        while not self._leaving.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        for pid in descendants(self.parent):
            self.born_s.setdefault(pid, time.monotonic())

    def _probe_on(self) -> None:
        address = urlsplit(self.url)
        while not self._leaving.wait(POLL_S):
            sent_s, status = time.monotonic(), 0
            connection = http.client.HTTPConnection(address.netloc, timeout=PROBE_TIMEOUT_S)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/ready")
                status = connection.getresponse().status
            connection.close()
            self.probes.append((sent_s, time.monotonic(), status))


def descendants(pid: int) -> list[int]:
    """Return the processes below a process that are its children, theirs, and so on."""
    found: list[int] = []
    open_pids = [pid]
    while open_pids:
        for path in Path(f"/proc/{open_pids.pop()}/task").glob("*/children"):
            # A thread that ends meanwhile has no children any more.
            with contextlib.suppress(OSError):
                children = [int(word) for word in path.read_text().split()]
                found += children
                open_pids += children
    return found


def pss_kb(pids: Iterable[int]) -> int:
    """Return the proportional set size of processes; of those that have ended, nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total

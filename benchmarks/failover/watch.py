"""When did a server tell of a fault, and take requests again? Seen from outside."""

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

POLL_S = 0.01
PROBE_TIMEOUT_S = 10.0


@dataclass
class Watch:
    """A thread that asks /ready until the block is left.

    Attributes:
        probes: when each probe was sent and answered, and the status; 0 if there was no answer.
    """

    url: str
    probes: list[tuple[float, float, int]] = field(default_factory=list)
    _leaving: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._probe_on)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._leaving.set()
        if self._thread is not None:
            self._thread.join()

    def told_s(self, since_s: float) -> float | None:
        """Return when /ready first said after a point in time that the server is not ready."""
        told = (end for sent, end, status in self.probes if sent > since_s and status != 200)
        return next(told, None)

    def ready_s(self, since_s: float) -> float | None:
        """Return when /ready said for good that the server is ready, after it had said that it is not."""
        after = [probe for probe in self.probes if probe[0] > since_s]
        told_s = max((sent for sent, _, status in after if status != 200), default=None)
        if told_s is None:
            return None
        return next((end for sent, end, status in after if sent > told_s and status == 200), None)

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


def pss_kb(pids: Iterable[int]) -> int:
    """Return the proportional set size of processes; of those that have ended, nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total

"""The spare engine: a second engine-core process that has done all it does before it serves.

It takes the engine's place at once when that one is lost, and shows before a rolling restart whether new
software and new files of the model can be served at all.

event                      what happens
the engine serves          a spare is started a little later, if there is none
the engine is to start     the spare, prepared or not, becomes the engine; none is started until it serves
renew()                    the spare is replaced by one that reads everything anew
the spare ends, or is      another one is started later, and later each time, until one is prepared or the
not prepared in time       engine serves again
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from splitserve.engine_core.process.children import Child, describe_exit
from splitserve.engine_core.process.standby import StandbyNews, StandbyProcess

NEVER = float("inf")
# It takes half a second of a processor, which streams that have just been resumed need more.
START_DELAY_S = 3.0
# Whatever ended a spare, such as a lack of memory or a faulty new release, may last.
FIRST_RETRY_S = 10.0
MAX_RETRY_S = 600.0
# For imports, a download and a look at the model's files.
PREPARE_TIMEOUT_S = 300.0
_LAST_STEPS_S = 5.0


class Prepared(NamedTuple):
    """A spare is prepared, or failed to be.

    Attributes:
        failure: why it failed, "" if it has not.
    """

    failure: str


class SpareEngine:
    """At most one such process; polled by the launcher's loop.

    Attributes:
        is_prepared: there is one, and it only has to be told to serve.

    Args:
        start: starts the command; takes the descriptor of the line that the child inherits.
    """

    def __init__(self, start: Callable[[int], Child]) -> None:
        self._start = start
        self._process: StandbyProcess | None = None
        self._start_due_s = NEVER
        self._kill_due_s = NEVER
        self._retry_s = FIRST_RETRY_S
        self.is_prepared = False

    @property
    def sources(self) -> list[int]:
        """What to poll for input."""
        return [self._process.fileno()] if self._process is not None else []

    @property
    def pids(self) -> list[int]:
        """Its process, if there is one."""
        return [self._process.child.pid] if self._process is not None else []

    def next_due_s(self) -> float:
        """Return when to call run() next, at the latest."""
        return min(self._start_due_s, self._kill_due_s)

    def on_engine_serves(self, now_s: float) -> None:
        """Have a spare soon."""
        self._retry_s = FIRST_RETRY_S
        if self._process is None:
            self._start_due_s = now_s + START_DELAY_S

    def renew(self, now_s: float) -> Prepared | None:
        """Start one that reads everything anew; returns what has come of it if it cannot be started."""
        self.end()
        try:
            self._process = StandbyProcess(self._start)
        except OSError as error:
            return self._failed(now_s, f"cannot be started: {error.strerror}")
        self._kill_due_s = now_s + PREPARE_TIMEOUT_S
        return None

    def run(self, now_s: float) -> Prepared | None:
        """Do what is due; return what has come of the process's start, once."""
        if now_s >= self._start_due_s:
            return self.renew(now_s)
        if self._process is None:
            return None
        if now_s >= self._kill_due_s:
            self.end()
            return self._failed(now_s, f"was not prepared after {PREPARE_TIMEOUT_S:.0f} s")
        match self._process.news():
            case None:
                return None
            case StandbyNews.PREPARED:
                self._kill_due_s = NEVER
                self.is_prepared = True
                self._retry_s = FIRST_RETRY_S
                return Prepared("")
            case StandbyNews.ENDED:
                how = describe_exit(self.end(_LAST_STEPS_S))
                return self._failed(now_s, f"ended before it served ({how})")

    def take(self) -> Child | None:
        """Return the process that is the engine from now on; None if there is none to take."""
        process = self._let_go()
        return process.take() if process is not None else None

    def end(self, patience_s: float = 0.0) -> int:
        """End it; return its exit code, -N after signal N.

        Args:
            patience_s: how long it may take to end by itself, before it is killed.
        """
        process = self._let_go()
        return process.close(patience_s) if process is not None else os.EX_OK

    def _failed(self, now_s: float, how: str) -> Prepared:
        self._start_due_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
        return Prepared(f"the successor of engine-core {how}")

    def _let_go(self) -> StandbyProcess | None:
        process, self._process = self._process, None
        self._start_due_s = self._kill_due_s = NEVER
        self.is_prepared = False
        return process

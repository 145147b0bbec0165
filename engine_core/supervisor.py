"""When to start, restart, signal and give up on the processes of a server; a state machine without I/O.

    state     child ended                          restart due   stop()                    deadline passed
    RUNNING   restart after a delay; STOPPING      start it      STOPPING, SIGTERM to the  -
              when it may not or once too often                  first stage
    STOPPING  SIGTERM to the next stage once the   -             (again) KILLING           SIGKILL to this
              last one is gone; DONE after all                                             stage
    KILLING   DONE after all                       -             -                         SIGKILL to all
    DONE      -                                    -             -                         -

Children stop in stages, frontends before the engine, so that running streams end on a living engine. One
child's end touches no other. A child whose exit code says that retrying is pointless, or that ended more than
5 times within 60 s, ends the server with the child's exit code.
"""

from __future__ import annotations

import enum
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_core.errors import EXIT_CONFIG, EXIT_MODEL, EXIT_OK
from engine_core.process import describe_exit, shell_code

MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
KILL_GRACE_S = 1.0
NEVER = float("inf")

FATAL_CODES = frozenset((EXIT_CONFIG, EXIT_MODEL))


class ServerState(enum.Enum):
    """See the table above."""

    RUNNING = 0
    STOPPING = 1
    KILLING = 2
    DONE = 3


class ChildSpec(NamedTuple):
    """One process to keep alive.

    Attributes:
        name: for logs, unique.
        stage: stages stop in ascending order.
        stop_timeout_s: seconds from SIGTERM to SIGKILL.
    """

    name: str
    stage: int
    stop_timeout_s: float


class Start(NamedTuple):
    """Start this child."""

    name: str


class Send(NamedTuple):
    """Send this child a signal."""

    name: str
    number: signal.Signals


class Say(NamedTuple):
    """Tell the operator."""

    text: str


Action = Start | Send | Say


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    running: bool = False
    restart_due_s: float = NEVER
    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RESTARTS + 1))


class Supervisor:
    """Decides; the caller starts and signals processes, and reports what happened.

    Every method returns the actions to carry out, in order.
    """

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}
        self._stage = -1
        self._stage_deadline_s = NEVER
        self.state = ServerState.RUNNING
        self.exit_code = EXIT_OK

    def begin(self) -> list[Action]:
        """Start every child."""
        return [self._start(child) for child in self._children.values()]

    def next_due_s(self) -> float:
        """Return when on_time() is next needed; inf for never."""
        restarts = (child.restart_due_s for child in self._children.values())
        return min(self._stage_deadline_s, min(restarts, default=NEVER))

    def on_time(self, now_s: float) -> list[Action]:
        """Restart what is due, and kill what ignored its SIGTERM for too long."""
        actions: list[Action] = []
        for child in self._children.values():
            if now_s >= child.restart_due_s:
                child.restart_due_s = NEVER
                actions.append(self._start(child))
        if now_s >= self._stage_deadline_s:
            self._stage_deadline_s = NEVER
            late = [child for child in self._running() if self._is_ending(child)]
            actions += [Say(f"{child.spec.name} did not end in time, killing it") for child in late]
            actions += _send(late, signal.SIGKILL)
        return actions

    def on_exit(self, name: str, code: int, now_s: float) -> list[Action]:
        """Take note of a child's end.

        Args:
            name: of the child.
            code: exit code, -N after signal N.
            now_s: the time.
        """
        child = self._children[name]
        child.running = False
        if self.state is ServerState.RUNNING:
            return self._after_loss(child, code, now_s)
        return self._advance(now_s)

    def stop(self, number: signal.Signals, now_s: float) -> list[Action]:
        """End everything in order, asked for by a signal; called again, end everything at once."""
        if self.state is ServerState.RUNNING:
            return self._begin_stop(now_s)
        if self.state is not ServerState.STOPPING:
            return []
        self.state = ServerState.KILLING
        self.exit_code = self.exit_code or 128 + number
        self._stage_deadline_s = now_s + KILL_GRACE_S
        # A second SIGTERM makes each end at once but in order: sockets and workers go with it.
        return [Say("ending at once"), *_send(self._running(), signal.SIGTERM), *self._done_if_empty()]

    def _start(self, child: _Child) -> Start:
        child.running = True
        return Start(child.spec.name)

    def _after_loss(self, child: _Child, code: int, now_s: float) -> list[Action]:
        name, how = child.spec.name, describe_exit(code)
        while child.ends_s and now_s - child.ends_s[0] > RESTART_WINDOW_S:
            child.ends_s.popleft()
        child.ends_s.append(now_s)
        if code in FATAL_CODES:
            why = f"{name} cannot run ({how}), giving up"
        elif len(child.ends_s) > MAX_RESTARTS:
            why = f"{name} ended {len(child.ends_s)} times within {RESTART_WINDOW_S:.0f} s ({how}), giving up"
        else:
            delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (len(child.ends_s) - 1))
            child.restart_due_s = now_s + delay_s
            return [Say(f"{name} ended unexpectedly ({how}), restarting it in {delay_s:g} s")]
        self.exit_code = shell_code(code) or 1
        return [Say(why), *self._begin_stop(now_s)]

    def _begin_stop(self, now_s: float) -> list[Action]:
        self.state = ServerState.STOPPING
        for child in self._children.values():
            child.restart_due_s = NEVER
        return self._advance(now_s)

    def _advance(self, now_s: float) -> list[Action]:
        """Go on to the next stage when the current one is empty."""
        running = self._running()
        if self.state is not ServerState.STOPPING or not running:
            return self._done_if_empty()
        stage = min(child.spec.stage for child in running)
        if stage == self._stage:
            return []
        self._stage = stage
        ending = [child for child in running if child.spec.stage == stage]
        self._stage_deadline_s = now_s + max(child.spec.stop_timeout_s for child in ending)
        return _send(ending, signal.SIGTERM)

    def _done_if_empty(self) -> list[Action]:
        if self.state in (ServerState.STOPPING, ServerState.KILLING) and not self._running():
            self.state = ServerState.DONE
            self._stage_deadline_s = NEVER
        return []

    def _is_ending(self, child: _Child) -> bool:
        return self.state is ServerState.KILLING or child.spec.stage == self._stage

    def _running(self) -> list[_Child]:
        return [child for child in self._children.values() if child.running]


def _send(children: Iterable[_Child], number: signal.Signals) -> list[Action]:
    return [Send(child.spec.name, number) for child in children]

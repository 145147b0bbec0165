"""When to start, restart, signal or give up on a server's processes: a state machine without I/O.

    server    child ended                    restart due  child ran    stop()              deadline
                                                          for 60 s                         passed
    RUNNING   see below                      start it     now healthy  STOPPING, SIGTERM   -
                                                                       to the first stage
    STOPPING  SIGTERM to the next stage      -            -            KILLING, SIGTERM    SIGKILL to
              once the last one is gone;                               to all              this stage
              DONE after all
    KILLING   DONE after all                 -            -            -                   SIGKILL to all
    DONE      -                              -            -            -                   -

    child     it ended for the 1st to 5th    it ended for the 6th time within 60 s, or in a way that makes
              time within 60 s               retrying pointless (exit codes 2 and 3)
    healthy   restart after a short delay,   failing, restart after 30 s; if no other child of its stage
              twice as long each time        is healthy or running: STOPPING with its exit code
    failing   as on the right                as above; healthy again once it has run for 60 s

Children stop in stages, frontends before the engine, so that running streams can finish while the engine is
still up. A child that ends affects no other. The children of a stage can replace each other, so losing one of
them is better than stopping the server. Only exit code 2 or 3 at a child's first start stops the server at
once, since the cause then affects the whole stage.
"""

from __future__ import annotations

import enum
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_MODEL, EXIT_OK
from splitserve.engine_core.process.children import describe_exit, shell_code

MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
FIRST_DELAY_S = 0.1
# For a failing child: rare enough to cost nothing, frequent enough to notice that the cause is gone.
FAILING_DELAY_S = 30.0
KILL_GRACE_S = 1.0
NEVER = float("inf")

FATAL_CODES = frozenset((EXIT_CONFIG, EXIT_MODEL))


class SupervisorState(enum.Enum):
    """See the table above."""

    RUNNING = 0
    STOPPING = 1
    KILLING = 2
    DONE = 3


class ChildSpec(NamedTuple):
    """One process to keep running.

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
    failing: bool = False
    num_starts: int = 0
    restart_due_s: float = NEVER
    sound_due_s: float = NEVER
    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RESTARTS + 1))


class Supervisor:
    """Decides what to do; the caller starts and signals processes, and reports what happened.

    Every method returns the actions to carry out, in order.
    """

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}
        self._stage = -1
        self._stage_deadline_s = NEVER
        self.state = SupervisorState.RUNNING
        self.exit_code = EXIT_OK

    def begin(self) -> list[Action]:
        """Start every child."""
        return [self._start(child) for child in self._children.values()]

    def next_due_s(self) -> float:
        """Return when to call on_time() next; inf for never."""
        dues = (min(child.restart_due_s, child.sound_due_s) for child in self._children.values())
        return min(self._stage_deadline_s, min(dues, default=NEVER))

    def on_time(self, now_s: float) -> list[Action]:
        """Restart children that are due, mark long-running ones healthy, kill those that ignored SIGTERM."""
        actions: list[Action] = []
        for child in self._children.values():
            if now_s >= child.restart_due_s:
                child.restart_due_s = NEVER
                actions.append(self._start(child))
                child.sound_due_s = now_s + RESTART_WINDOW_S if child.failing else NEVER
            elif now_s >= child.sound_due_s:
                child.failing, child.sound_due_s = False, NEVER
                child.ends_s.clear()
                actions.append(Say(f"{child.spec.name} has been running for {RESTART_WINDOW_S:.0f} s again"))
        if now_s >= self._stage_deadline_s:
            self._stage_deadline_s = NEVER
            late = [child for child in self._running() if self._is_ending(child)]
            actions += [Say(f"{child.spec.name} did not end in time, killing it") for child in late]
            actions += _send(late, signal.SIGKILL)
        return actions

    def on_exit(self, name: str, code: int, now_s: float) -> list[Action]:
        """Record that a child ended, and return what to do.

        Args:
            name: of the child.
            code: exit code, -N after signal N.
            now_s: current time.
        """
        child = self._children[name]
        child.running = False
        child.sound_due_s = NEVER
        if self.state is SupervisorState.RUNNING:
            return self._after_loss(child, code, now_s)
        return self._advance(now_s)

    def stop(self, number: signal.Signals, now_s: float) -> list[Action]:
        """Stop all children in order after a signal; on a second call stop all of them at once."""
        if self.state is SupervisorState.RUNNING:
            return self._begin_stop(now_s)
        if self.state is not SupervisorState.STOPPING:
            return []
        self.state = SupervisorState.KILLING
        self.exit_code = self.exit_code or 128 + number
        self._stage_deadline_s = now_s + KILL_GRACE_S
        # A second SIGTERM makes each child exit at once but cleanly, with its sockets and workers.
        return [Say("ending at once"), *_send(self._running(), signal.SIGTERM), *self._done_if_empty()]

    def _start(self, child: _Child) -> Start:
        child.running = True
        child.num_starts += 1
        return Start(child.spec.name)

    def _after_loss(self, child: _Child, code: int, now_s: float) -> list[Action]:
        name, how = child.spec.name, describe_exit(code)
        while child.ends_s and now_s - child.ends_s[0] > RESTART_WINDOW_S:
            child.ends_s.popleft()
        child.ends_s.append(now_s)
        why = f"{name} ended unexpectedly ({how})"
        if code in FATAL_CODES:
            why = f"{name} cannot run ({how})"
        elif len(child.ends_s) > MAX_RESTARTS:
            why = f"{name} ended {len(child.ends_s)} times within {RESTART_WINDOW_S:.0f} s ({how})"
        elif not child.failing:
            delay_s = FIRST_DELAY_S * 2 ** (len(child.ends_s) - 1)
            child.restart_due_s = now_s + delay_s
            return [Say(f"{why}, restarting it in {delay_s:g} s")]
        if self._is_needed(child, code):
            self.exit_code = shell_code(code) or 1
            return [Say(f"{why}, giving up"), *self._begin_stop(now_s)]
        child.failing = True
        child.restart_due_s = now_s + FAILING_DELAY_S
        return [Say(f"{why}: continuing without it, retrying every {FAILING_DELAY_S:g} s")]

    def _is_needed(self, child: _Child, code: int) -> bool:
        """Whether the server cannot continue without a child that keeps failing."""
        if code in FATAL_CODES and child.num_starts == 1:
            return True
        others = (o for o in self._children.values() if o is not child and o.spec.stage == child.spec.stage)
        return not any(other.running or not other.failing for other in others)

    def _begin_stop(self, now_s: float) -> list[Action]:
        self.state = SupervisorState.STOPPING
        for child in self._children.values():
            child.restart_due_s = child.sound_due_s = NEVER
        return self._advance(now_s)

    def _advance(self, now_s: float) -> list[Action]:
        """Proceed to the next stage once the current one is empty."""
        running = self._running()
        if self.state is not SupervisorState.STOPPING or not running:
            return self._done_if_empty()
        stage = min(child.spec.stage for child in running)
        if stage == self._stage:
            return []
        self._stage = stage
        ending = [child for child in running if child.spec.stage == stage]
        self._stage_deadline_s = now_s + max(child.spec.stop_timeout_s for child in ending)
        return _send(ending, signal.SIGTERM)

    def _done_if_empty(self) -> list[Action]:
        if self.state in (SupervisorState.STOPPING, SupervisorState.KILLING) and not self._running():
            self.state = SupervisorState.DONE
            self._stage_deadline_s = NEVER
        return []

    def _is_ending(self, child: _Child) -> bool:
        return self.state is SupervisorState.KILLING or child.spec.stage == self._stage

    def _running(self) -> list[_Child]:
        return [child for child in self._children.values() if child.running]


def _send(children: Iterable[_Child], number: signal.Signals) -> list[Action]:
    return [Send(child.spec.name, number) for child in children]

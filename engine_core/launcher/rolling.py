"""How a server's processes are replaced one after another while it serves: a state machine without I/O.

    stage            engine ended         engine serves      successor serves    successor ended  deadline
    IDLE             -                    -                  -                   -                -
    ENGINE_LEAVES    start it again,      -                  -                   -                SIGKILL to
                     ENGINE_STARTS                                                                the engine
    ENGINE_STARTS    its restart is the   start a successor  -                   -                -
                     supervisor's matter  of the first
                                          frontend,
                                          FRONTEND_STARTS
    FRONTEND_STARTS  as above             -                  SIGTERM to the old  the roll failed, SIGKILL to
                                                             one; successor of   IDLE; the old    the
                                                             the next, or IDLE   one serves on    successor

begin() starts with SIGUSR1 to the engine, which hands its requests back to the frontends and ends; if it does
not run, with ENGINE_STARTS. During a roll it is kept for the end: then another roll follows. If no place is
free for a successor, because frontends that were replaced still finish their streams, the next one that ends
makes room. An old frontend that ends by itself while its successor starts is not restarted; any other child
that ends is the supervisor's matter, and frontends that it restarts meanwhile need no successor any more.
Old frontends finish their streams after the roll; each is killed after its stop timeout.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping

from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.launcher.child_state import NEVER, Action, ChildState, Say
from splitserve.engine_core.process.children import describe_exit

# The engine has nothing to wait for when it hands over; a frontend may have a large tokenizer to load.
LEAVE_TIMEOUT_S = 10.0
START_TIMEOUT_S = 300.0


class RollStage(enum.Enum):
    """See the table above."""

    IDLE = 0
    ENGINE_LEAVES = 1
    ENGINE_STARTS = 2
    FRONTEND_STARTS = 3


class RollingRestart:
    """The current rolling restart; owned by the supervisor, whose children it shares.

    Attributes:
        stage: see the table.
        num_begun, num_ended: rolls so far.
        failure: why the last one that ended has failed, "" if it has not.
    """

    def __init__(self, children: Mapping[str, ChildState], engine: ChildState) -> None:
        self._children = children
        self._engine = engine
        self._old: list[ChildState] = []
        self._successor: ChildState | None = None
        self._is_wanted_again = False
        self.stage = RollStage.IDLE
        self.num_begun = 0
        self.num_ended = 0
        self.failure = ""

    def begin(self, now_s: float) -> list[Action]:
        """Begin, or do so after the current one."""
        if self.stage is not RollStage.IDLE:
            self._is_wanted_again = True
            return [Say("another rolling restart will follow this one")]
        self._is_wanted_again = False
        self.num_begun += 1
        self._old = [child for child in self._frontends() if child.running and not child.is_leaving]
        begun = Say("rolling restart: the engine, then one frontend after another")
        if not self._engine.running:
            self.stage = RollStage.ENGINE_STARTS
            return [begun]
        self.stage = RollStage.ENGINE_LEAVES
        return [begun, self._engine.leave(signal.SIGUSR1, now_s + LEAVE_TIMEOUT_S)]

    def drop(self) -> None:
        """End the roll since the server is to stop."""
        self._is_wanted_again = False
        if self.stage is not RollStage.IDLE:
            self._end("the server was stopped")

    def on_engine_left(self, code: int) -> list[Action] | None:
        """Return what to do when the engine that was to leave ended; None if it did so in a wrong way."""
        self.stage = RollStage.ENGINE_STARTS
        # Before it has taken the signal over, it is ended by it.
        if code in (EXIT_OK, -signal.SIGUSR1) or self._engine.is_killed:
            return [self._engine.start()]
        return None

    def on_frontend_end(self, child: ChildState, code: int, now_s: float) -> list[Action] | None:
        """Return what to do when a frontend ended; None if the roll has nothing to do with it."""
        if child.is_leaving:
            child.retire()
            return self._go_on(now_s)
        if child is self._successor:
            child.retire()
            why = f"{child.spec.name} ended before it served ({describe_exit(code)})"
            self._end(why)
            return [Say(f"rolling restart failed: {why}"), *self._follow(now_s)]
        if self._successor is not None and self._old and child is self._old[0]:
            # From now on the successor is a frontend like any other.
            self._old.pop(0)
            self._successor = None
            child.retire()
            said = Say(f"{child.spec.name} ended unexpectedly ({describe_exit(code)}), its successor starts")
            return [said, *self._go_on(now_s)]
        self._old = [old for old in self._old if old is not child]
        return None

    def on_serving(self, child: ChildState, now_s: float) -> list[Action]:
        """Go on when a child serves that was waited for."""
        if child is not self._successor:
            return self._go_on(now_s)
        child.kill_due_s = NEVER
        self._successor = None
        old = self._old.pop(0)
        replaced = Say(f"{child.spec.name} serves, {old.spec.name} finishes its streams")
        leave = old.leave(signal.SIGTERM, now_s + old.spec.stop_timeout_s)
        return [replaced, leave, *self._go_on(now_s)]

    def _go_on(self, now_s: float) -> list[Action]:
        """Take the next step if nothing is waited for."""
        if self.stage is RollStage.ENGINE_STARTS and self._engine.serves:
            self.stage = RollStage.FRONTEND_STARTS
        if self.stage is not RollStage.FRONTEND_STARTS or self._successor is not None:
            return []
        if not self._old:
            self._end("")
            return [Say("rolling restart done"), *self._follow(now_s)]
        free = (child for child in self._frontends() if child.is_spare and not child.running)
        self._successor = next(free, None)
        if self._successor is None:
            return []
        self._successor.is_spare = False
        start = self._successor.start()
        self._successor.kill_due_s = now_s + START_TIMEOUT_S
        return [start]

    def _end(self, failure: str) -> None:
        self.stage = RollStage.IDLE
        self._old, self._successor = [], None
        self.num_ended = self.num_begun
        self.failure = failure

    def _follow(self, now_s: float) -> list[Action]:
        return self.begin(now_s) if self._is_wanted_again else []

    def _frontends(self) -> list[ChildState]:
        return [child for child in self._children.values() if child is not self._engine]

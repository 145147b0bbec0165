"""How a server's processes are replaced one after another while it serves: a state machine without I/O.

    stage            event                            next                     what happens
    IDLE             begin()                          ENGINE_PREPARES          start a successor of the engine
                     begin(), no engine runs          ENGINE_STARTS            the same
    ENGINE_PREPARES  the successor is prepared        ENGINE_LEAVES            SIGUSR1 to the engine
                     it cannot be prepared            IDLE, the roll failed    -
                     the engine ends                  ENGINE_STARTS            its restart is the supervisor's
    ENGINE_LEAVES    the engine ends                  ENGINE_STARTS            start it: that is the successor
                     it does not end in time          -                        SIGKILL to the engine
    ENGINE_STARTS    the engine serves                FRONTEND_STARTS          start a successor of the first
                     it ends                          -                        its restart is the supervisor's
    FRONTEND_STARTS  the successor serves             -, IDLE after the last   SIGTERM to the old frontend,
                                                                               start a successor of the next
                     it ends, or does not serve       IDLE, the roll failed    SIGKILL to it, the old one
                     in time                                                   serves on
                     the engine ends                  -                        its restart is the supervisor's

The engine's successor reads software and files anew: if it cannot, nothing has happened yet. The engine
hands its requests back to the frontends before it ends. During a roll begin() is kept for the end: then
another roll follows. If no place is free for a frontend's successor, because frontends that were replaced
still finish their streams, the next one that ends makes room. An old frontend that ends by itself while its
successor starts is not restarted; any other child that ends is the supervisor's matter, and frontends that
it restarts meanwhile need no successor any more. Old frontends finish their streams after the roll; each is
killed after its stop timeout.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping

from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.launcher.child_state import NEVER, Action, ChildState, Prepare, Say
from splitserve.engine_core.process.children import describe_exit

# The engine has nothing to wait for when it hands over; a frontend may have a large tokenizer to load.
LEAVE_TIMEOUT_S = 10.0
START_TIMEOUT_S = 300.0


class RollStage(enum.Enum):
    """See the table above."""

    IDLE = 0
    ENGINE_PREPARES = 1
    ENGINE_LEAVES = 2
    ENGINE_STARTS = 3
    FRONTEND_STARTS = 4


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
        self.stage = RollStage.ENGINE_PREPARES if self._engine.running else RollStage.ENGINE_STARTS
        return [Say("rolling restart: the engine, then one frontend after another"), Prepare()]

    def on_prepared(self, failure: str, now_s: float) -> list[Action]:
        """Go on when a successor of the engine is prepared, or cannot be; outside of a roll it is the spare.

        Args:
            failure: why it failed, "" if it has not.
            now_s: current time.
        """
        if self.stage is not RollStage.ENGINE_PREPARES:
            return [Say(f"no spare engine-core: {failure}" if failure else "spare engine-core ready")]
        if failure:
            self._end(failure)
            return [Say(f"rolling restart failed: {failure}"), *self._follow(now_s)]
        self.stage = RollStage.ENGINE_LEAVES
        return [self._engine.leave(signal.SIGUSR1, now_s + LEAVE_TIMEOUT_S)]

    def drop(self) -> None:
        """End the roll since the server is to stop."""
        self._is_wanted_again = False
        if self.stage is not RollStage.IDLE:
            self._end("the server was stopped")

    def on_engine_end(self, code: int) -> list[Action] | None:
        """Return what to do when the engine ended; None if not because of the roll."""
        if self.stage not in (RollStage.ENGINE_PREPARES, RollStage.ENGINE_LEAVES):
            return None
        was_asked = self.stage is RollStage.ENGINE_LEAVES
        self.stage = RollStage.ENGINE_STARTS
        # Before it has taken the signal over, it is ended by it.
        if was_asked and (code in (EXIT_OK, -signal.SIGUSR1) or self._engine.is_killed):
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

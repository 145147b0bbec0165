"""When to start, restart, signal or give up on a server's processes: a state machine without I/O.

    server    child ended                   restart due  child ran    stop()              deadline    child
                                                         for 60 s                         passed      hangs
    RUNNING   see below                     start it     now healthy  STOPPING, SIGTERM   SIGKILL to  SIGKILL
                                                                      to the first stage  who leaves  to it
    STOPPING  SIGTERM to the next stage     -            -            KILLING, SIGTERM    SIGKILL to  SIGKILL
              once the last one is gone;                              to all              this stage  to it
              DONE after all
    KILLING   DONE after all                -            -            -                   SIGKILL     -
                                                                                          to all
    DONE      -                             -            -            -                   -           -

    child     it ended for the 1st to 5th    it ended for the 6th time within 60 s, or in a way that makes
              time within 60 s               retrying pointless (exit codes 2 and 3)
    healthy   restart: at once if it served, failing, restart after 30 s; if no other child of its stage
              else with growing delays        is healthy or running: STOPPING with its exit code
    failing   as on the right                as above; healthy again once it has run for 60 s

Children stop in stages, frontends before the engine, so that running streams can finish while the engine is
still up. A child that ends affects no other. The children of a stage can replace each other, so losing one of
them is better than stopping the server. Only exit code 2 or 3 at a child's first start stops the server at
once, since the cause then affects the whole stage.

roll() replaces all children one after another while the server is RUNNING, see rolling.py; a stop drops it,
and children that it asked to end are left to do so. In the other states it does nothing.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_MODEL, EXIT_OK
from splitserve.engine_core.launcher.child_state import (
    NEVER,
    Action,
    ChildSpec,
    ChildState,
    Say,
    send_all,
)
from splitserve.engine_core.launcher.rolling import RollingRestart, RollStage
from splitserve.engine_core.process.children import describe_exit, shell_code
from splitserve.engine_core.process.restart_intensity import RESTART_WINDOW_S

# For a failing child: rare enough to cost nothing, frequent enough to notice that the cause is gone.
FAILING_DELAY_S = 30.0
KILL_GRACE_S = 1.0

FATAL_CODES = frozenset((EXIT_CONFIG, EXIT_MODEL))


class SupervisorState(enum.Enum):
    """See the table above."""

    RUNNING = 0
    STOPPING = 1
    KILLING = 2
    DONE = 3


class Supervisor:
    """Decides what to do; the caller starts and signals processes, and reports what happened.

    Every method returns the actions to carry out, in order.
    """

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        """Prepare it.

        Args:
            specs: of the children; the only one of the last stage is the engine.
        """
        # A spare one's first start is not the first of the server: what it cannot do, others could.
        self._children = {
            spec.name: ChildState(spec, is_spare=spec.is_spare, num_starts=int(spec.is_spare))
            for spec in specs
        }
        self._engine = max(self._children.values(), key=lambda child: child.spec.stage)
        self.rolling = RollingRestart(self._children, self._engine)
        self._stage = -1
        self._stage_deadline_s = NEVER
        self.state = SupervisorState.RUNNING
        self.exit_code = EXIT_OK

    @property
    def is_rolling(self) -> bool:
        """Whether a rolling restart is in progress."""
        return self.rolling.stage is not RollStage.IDLE

    def begin(self) -> list[Action]:
        """Start every child that is not spare."""
        return [child.start() for child in self._children.values() if not child.is_spare]

    def is_wanted(self, name: str) -> bool:
        """Whether a child runs or is to run again."""
        return not self._children[name].is_spare

    def next_due_s(self) -> float:
        """Return when to call on_time() next; inf for never."""
        dues = (
            min(child.restart_due_s, child.sound_due_s, child.kill_due_s) for child in self._children.values()
        )
        return min(self._stage_deadline_s, min(dues, default=NEVER))

    def on_time(self, now_s: float) -> list[Action]:
        """Restart children that are due, mark long-running ones healthy, kill those that ignored SIGTERM."""
        actions: list[Action] = []
        for child in self._children.values():
            if now_s >= child.restart_due_s:
                child.restart_due_s = NEVER
                actions.append(child.start())
                child.sound_due_s = now_s + RESTART_WINDOW_S if child.failing else NEVER
            elif now_s >= child.sound_due_s:
                child.failing, child.sound_due_s = False, NEVER
                child.intensity.forget()
                actions.append(Say(f"{child.spec.name} has been running for {RESTART_WINDOW_S:.0f} s again"))
            if now_s >= child.kill_due_s:
                what = "end" if child.is_leaving else "serve"
                actions += [Say(f"{child.spec.name} did not {what} in time, killing it"), child.kill()]
        if now_s >= self._stage_deadline_s:
            self._stage_deadline_s = NEVER
            for child in self._running():
                if self._is_ending(child):
                    actions += [Say(f"{child.spec.name} did not end in time, killing it"), child.kill()]
        return actions

    def on_serving(self, name: str, now_s: float) -> list[Action]:
        """Note that a child serves since its start."""
        child = self._children[name]
        child.serves = child.running
        return self.rolling.on_serving(child, now_s) if child.running else []

    def roll(self, now_s: float) -> list[Action]:
        """Replace all children one after another, without a stream that fails."""
        return self.rolling.begin(now_s) if self.state is SupervisorState.RUNNING else []

    def on_exit(self, name: str, code: int, now_s: float) -> list[Action]:
        """Record that a child ended, and return what to do.

        Args:
            name: of the child.
            code: exit code, -N after signal N.
            now_s: current time.
        """
        child = self._children[name]
        child.end()
        if self.state is not SupervisorState.RUNNING:
            return self._advance(now_s)
        if child is not self._engine:
            actions = self.rolling.on_frontend_end(child, code, now_s)
        else:
            actions = self.rolling.on_engine_end(code)
        return self._after_loss(child, code, now_s) if actions is None else actions

    def on_hung(self, name: str) -> list[Action]:
        """Kill a child whose loop stands still; its end counts like any other."""
        child = self._children[name]
        if (
            not child.running
            or child.is_killed
            or self.state
            not in (
                SupervisorState.RUNNING,
                SupervisorState.STOPPING,
            )
        ):
            return []
        return [Say(f"{name} hangs, killing it"), child.kill()]

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
        return [Say("ending at once"), *send_all(self._running(), signal.SIGTERM), *self._done_if_empty()]

    def _after_loss(self, child: ChildState, code: int, now_s: float) -> list[Action]:
        name, how = child.spec.name, describe_exit(code)
        num_ends = child.intensity.count_end(now_s)
        delay_s = child.intensity.delay_s()
        why = f"{name} ended unexpectedly ({how})"
        if code in FATAL_CODES:
            why = f"{name} cannot run ({how})"
        elif delay_s == NEVER:
            why = f"{name} ended {num_ends} times within {RESTART_WINDOW_S:.0f} s ({how})"
        elif not child.failing:
            child.restart_due_s = now_s + delay_s
            return [Say(f"{why}, restarting it{f' in {delay_s:g} s' if delay_s else ''}")]
        if self._is_needed(child, code):
            self.exit_code = shell_code(code) or 1
            return [Say(f"{why}, giving up"), *self._begin_stop(now_s)]
        child.failing = True
        child.restart_due_s = now_s + FAILING_DELAY_S
        return [Say(f"{why}: continuing without it, retrying every {FAILING_DELAY_S:g} s")]

    def _is_needed(self, child: ChildState, code: int) -> bool:
        """Whether the server cannot continue without a child that keeps failing."""
        if code in FATAL_CODES and child.num_starts == 1:
            return True
        others = (
            other
            for other in self._children.values()
            if other is not child
            and other.spec.stage == child.spec.stage
            and not (other.is_spare or other.is_leaving)
        )
        return not any(other.running or not other.failing for other in others)

    def _begin_stop(self, now_s: float) -> list[Action]:
        self.state = SupervisorState.STOPPING
        self.rolling.drop()
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
        # A second SIGTERM would cut the streams of those that leave already.
        return send_all((child for child in ending if not child.is_leaving), signal.SIGTERM)

    def _done_if_empty(self) -> list[Action]:
        if self.state in (SupervisorState.STOPPING, SupervisorState.KILLING) and not self._running():
            self.state = SupervisorState.DONE
            self._stage_deadline_s = NEVER
        return []

    def _is_ending(self, child: ChildState) -> bool:
        return self.state is SupervisorState.KILLING or child.spec.stage == self._stage

    def _running(self) -> list[ChildState]:
        return [child for child in self._children.values() if child.running]

"""What the supervisor knows of one child, and what it may ask for."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from splitserve.engine_core.process.restart_intensity import RestartIntensity

NEVER = float("inf")


class ChildSpec(NamedTuple):
    """One process to keep running.

    Attributes:
        name: for logs, unique.
        stage: stages stop in ascending order.
        stop_timeout_s: seconds from SIGTERM to SIGKILL.
        is_spare: not started until a rolling restart takes it as a successor.
    """

    name: str
    stage: int
    stop_timeout_s: float
    is_spare: bool = False


class Start(NamedTuple):
    """Start this child."""

    name: str


class Send(NamedTuple):
    """Send this child a signal."""

    name: str
    number: signal.Signals


class Prepare(NamedTuple):
    """Start a successor of the engine, and tell when it is prepared."""


class Say(NamedTuple):
    """Tell the operator."""

    text: str


Action = Start | Send | Prepare | Say


@dataclass(slots=True)
class ChildState:
    """One child.

    Attributes:
        spec: as configured.
        running: it was started and has not ended.
        serves: it said so since its start.
        is_spare: it is not wanted now: it may become a successor.
        is_leaving: it was asked to end, since another takes its place.
        is_killed: it got SIGKILL.
        failing: it ended too often.
        num_starts: so far.
        restart_due_s, sound_due_s, kill_due_s: when to start it, to call it sound again, to kill it.
        intensity: how often it ended unexpectedly.
    """

    spec: ChildSpec
    running: bool = False
    serves: bool = False
    is_spare: bool = False
    is_leaving: bool = False
    is_killed: bool = False
    failing: bool = False
    num_starts: int = 0
    restart_due_s: float = NEVER
    sound_due_s: float = NEVER
    kill_due_s: float = NEVER
    intensity: RestartIntensity = field(default_factory=RestartIntensity)

    def start(self) -> Start:
        """Note that it is started."""
        self.running, self.serves, self.is_leaving, self.is_killed = True, False, False, False
        self.kill_due_s = NEVER
        self.num_starts += 1
        return Start(self.spec.name)

    def end(self) -> None:
        """Note that it ended."""
        if self.serves:
            self.intensity.on_served()
        self.running = self.serves = False
        self.sound_due_s = self.kill_due_s = NEVER

    def retire(self) -> None:
        """Note that another has its place: it is spare, and its past forgotten."""
        self.is_spare, self.is_leaving, self.failing = True, False, False
        self.restart_due_s = NEVER
        self.intensity.forget()

    def leave(self, number: signal.Signals, due_s: float) -> Send:
        """Ask it to end, and kill it when that is due."""
        self.is_leaving, self.kill_due_s = True, due_s
        return Send(self.spec.name, number)

    def kill(self) -> Send:
        """Kill it."""
        self.is_killed, self.kill_due_s = True, NEVER
        return Send(self.spec.name, signal.SIGKILL)


def send_all(children: Iterable[ChildState], number: signal.Signals) -> list[Action]:
    """Return the actions that send each child a signal."""
    return [Send(child.spec.name, number) for child in children]

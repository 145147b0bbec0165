"""The simulated time and its events, and processes that are killed, stopped and continued; seeded."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from random import Random

from splitserve.engine_core.process import kill_points

Action = Callable[[], None]


class Killed(BaseException):
    """Unwinds a process that was killed at a kill point; no code of the process catches it."""


class World:
    """Everything that happens in one run, in order of time; what happens at once, in order of planning.

    Attributes:
        rng: the only source of chance.
        reached: how often each kill point was reached, and how often a process was killed there.
        problems: what a process did that it must never do; an error there would be taken for one request's.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.reached: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.problems: list[str] = []
        self._now_s = 1000.0
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._running: Process | None = None

    def monotonic(self) -> float:
        """The simulated time in seconds: this is the clock of every process."""
        return self._now_s

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._events, (self._now_s + max(0.0, delay_s), next(self._numbers), action))

    def run(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Let things happen until a time, or until is_over() says so."""
        while self._events and self._events[0][0] <= until_s and not is_over():
            time_s, _, action = heapq.heappop(self._events)
            self._now_s = max(self._now_s, time_s)
            action()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def enter(self, process: Process, action: Action) -> None:
        """Run code of a process, which ends if that reaches the kill point that is set for it."""
        before, self._running = self._running, process
        try:
            action()
        except Killed:
            process.kill()
        finally:
            self._running = before

    def reach(self, name: str) -> None:
        """What a kill point calls."""
        assert name in kill_points.KILL_POINTS, name
        process = self._running
        assert process is not None, f"{name} was reached outside of every process"
        self.reached[name] += 1
        if process.dies_at == name:
            process.dies_at = ""
            self.killed[name] += 1
            raise Killed


class Process:
    """One life of a process, from its start to its death.

    Attributes:
        dies_at: the kill point at which it is killed when it next gets there; "" for none.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_alive = True
        self.is_stopped = False
        self.dies_at = ""
        # What happens to it while it is stopped; it finds all of that when it is continued.
        self._missed: deque[Action] = deque()

    def call(self, action: Action) -> None:
        """Let the process do something now, or, while it is stopped, when it is continued."""
        if self.is_stopped:
            self._missed.append(action)
        elif self.is_alive:
            self.world.enter(self, action)

    def after(self, delay_s: float, action: Action) -> None:
        """Let the process do something later, if it still lives."""
        self.world.after(delay_s, lambda: self.call(action))

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        self.is_stopped = False
        while self._missed and self.is_alive and not self.is_stopped:
            self.call(self._missed.popleft())

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive:
            self.is_alive = self.is_stopped = False
            self._missed.clear()
            self.on_death()

    def on_death(self) -> None:
        """Do what the system does: close connections."""

"""Runs one target in this process until it has run enough, a case fails, or the process dies of one.

What is running is in a file before it runs, so that a case that kills the process, or hangs in native code,
is not lost with it.
"""

from __future__ import annotations

import gc
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from tests.fuzz.case import Case, minimised, save
from tests.fuzz.target import Target

REPORT_S = 10.0
MIB = 2**20
# Shorter runs say nothing about memory.
LEAST_S_TO_JUDGE_MEMORY = 60.0
# Growth from the end of the first third to the end that counts as flat: allocators keep pages of ten thousand
# tokenizers and engines. A kilobyte for each of 25,000 executions is more.
ALLOWED_GROWTH_BYTES = 24 * MIB
ALLOWED_GROWTH_SHARE = 0.1
RUNNING = "running-{name}-{seed}.case"


class Plan(NamedTuple):
    """What to run.

    Attributes:
        name: of the target.
        seconds: for how long; at least one case is run.
        seed: decides all cases.
        folder: for the case that runs, and for those that fail.
        num_wanted: executions to run instead, however long they take; 0 for as many as there is time for.
    """

    name: str
    seconds: float
    seed: int
    folder: Path
    num_wanted: int = 0

    @property
    def running(self) -> Path:
        """Where the case that runs is kept."""
        return self.folder / RUNNING.format(name=self.name, seed=self.seed)

    def shared(self, num_processes: int) -> list[Plan]:
        """Divide the count among so many processes, each of which runs cases of its own."""
        share = -(-self.num_wanted // num_processes)
        return [self._replace(seed=self.seed + i, num_wanted=share) for i in range(num_processes)]

    def done(self, count: int, elapsed_s: float) -> float:
        """Return which part of it is done, from 0; 1 and more once it is over."""
        if self.num_wanted:
            return count / self.num_wanted
        return elapsed_s / self.seconds if count and self.seconds else min(count, 1)


class Finding(Exception):
    """A case failed; the message tells how, and where it is kept."""


def run_target(target: Target, plan: Plan, tell: Callable[[str], None]) -> int:
    """Run cases until the time is over or there were enough; return how many executions that were.

    Raises:
        Finding: a case failed, or memory grew.
    """
    rng = random.Random(plan.seed)
    memory = _Memory()
    begin_s = reported_s = now_s = time.monotonic()
    count = 0
    while (done := plan.done(count, now_s - begin_s)) < 1:
        memory.sample(now_s - begin_s, done)
        case = target.draw(rng)
        plan.running.write_bytes(msgspec.msgpack.encode(case))
        count += _run_case(target, plan, case)
        now_s = time.monotonic()
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            tell(_rate(plan, target, count, now_s - begin_s))
    plan.running.unlink()
    told = _rate(plan, target, count, now_s - begin_s), memory.check(now_s - begin_s), _finish(target)
    tell("; ".join(filter(None, told)))
    return count


def _finish(target: Target) -> str:
    try:
        return target.finish()
    except Exception:
        raise Finding(f"after the last case:\n{traceback.format_exc()}") from None


def _run_case(target: Target, plan: Plan, case: Case) -> int:
    try:
        return target.run(case)
    except Exception:
        told = traceback.format_exc()
        smaller = minimised(case, lambda shorter: _fails(target, shorter))
        path = save(smaller, plan.folder, plan.name)
        raise Finding(f"{told}\n{replay_hint(path, plan.name)}") from None


def _fails(target: Target, case: Case) -> bool:
    try:
        target.run(case)
    except Exception:
        return True
    return False


def replay_hint(path: Path, name: str) -> str:
    """How to run one case again."""
    return f"{path}: run it again with: python -m tests.fuzz --target {name} --replay {path}"


def _rate(plan: Plan, target: Target, count: int, seconds: float) -> str:
    per_s = count / max(seconds, 1e-9)
    return f"{plan.name}: {count} {target.what} in {seconds:.0f} s, {per_s:.0f}/s"


class _Memory:
    """The resident memory of this process after a third of a run, and at its end."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = 0
        self._now = 0
        self._next_s = 0.0

    def sample(self, elapsed_s: float, done: float) -> None:
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + 2.0
        self._measure()
        if done < 1 / 3 or not self._before:
            self._before = max(self._before, self._now)

    def check(self, elapsed_s: float) -> str:
        self._measure()
        allowed = max(ALLOWED_GROWTH_BYTES, ALLOWED_GROWTH_SHARE * self._before)
        if elapsed_s >= LEAST_S_TO_JUDGE_MEMORY and self._now - self._before > allowed:
            raise Finding(f"memory grew from {self._before / MIB:.1f} to {self._now / MIB:.1f} MiB")
        return f"MiB {self._before / MIB:.1f} to {self._now / MIB:.1f}"

    def _measure(self) -> None:
        # An engine of an earlier case may still wait for it, with all of its columns.
        gc.collect()
        self._now = self._process.memory_info().rss

"""Answers come in the order of the steps, and a step begins early only where the worker says that it may."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Collection

import pytest

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.worker.batch.step_graphs import StepHeld, StepInFlight
from splitserve.worker.batch.step_pipeline import StepPipeline


class FakeWorker:
    """Leaves the steps of `flying` running, and lets those of `following` begin early; logs what happens.

    Steps of `held` are drawn only when all before them have been applied.

    Attributes:
        log: in order, what was done.
        applied: steps that had been applied when each step began.
    """

    def __init__(self, flying: set[int], following: set[int], held: Collection[int] = ()) -> None:
        self._held = held
        self._flying = flying
        self._following = following
        self._running: list[int] = []
        self._unapplied: list[int] = []
        self.log: list[str] = []
        self.applied: list[list[int]] = []

    def can_follow(self, step: SchedulerOutput) -> bool:
        assert self._unapplied, "nobody asks of a batch that is up to date"
        return step.step in self._following

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight | StepHeld:
        number = step.step
        assert not self._unapplied or number in self._following
        self.log.append(f"begin {number}")
        self.applied.append([step for step in range(number) if f"apply {step}" in self.log])
        return StepHeld(lambda: self._draw(number)) if number in self._held else self._sample(number)

    def _draw(self, number: int) -> ModelRunnerOutput | StepInFlight:
        assert not self._unapplied, "masks follow from the tokens before"
        self.log.append(f"draw {number}")
        return self._sample(number)

    def _sample(self, number: int) -> ModelRunnerOutput | StepInFlight:
        if number not in self._flying:
            return ModelRunnerOutput(number, b"", b"")
        self._running.append(number)
        self._unapplied.append(number)
        return StepInFlight(lambda: self._finish(number), lambda: self._apply(number))

    def _finish(self, number: int) -> ModelRunnerOutput:
        assert self._running.pop(0) == number
        self.log.append(f"finish {number}")
        return ModelRunnerOutput(number, b"", b"")

    def _apply(self, number: int) -> None:
        assert number not in self._running
        assert self._unapplied.pop(0) == number
        self.log.append(f"apply {number}")


def run(flying: set[int], following: set[int], *steps: int, held: Collection[int] = ()) -> list[str]:
    worker = FakeWorker(flying, following, held)
    pipeline = StepPipeline(worker, lambda output: worker.log.append(f"send {output.step}"))
    for number in steps:
        pipeline.run(SchedulerOutput(number, b"", b""), 0.0)
    pipeline.settle()
    assert not pipeline.is_running
    return worker.log


def test_a_step_that_is_done_is_answered_at_once() -> None:
    assert run(set(), set(), 1, 2) == ["begin 1", "send 1", "begin 2", "send 2"]


def test_a_step_that_may_follow_begins_before_the_one_before_is_finished() -> None:
    log = ["begin 1", "begin 2", "finish 1", "send 1", "apply 1", "finish 2", "send 2"]
    assert run({1, 2}, {2}, 1, 2) == log


def test_a_step_that_may_not_follow_begins_after_the_one_before() -> None:
    log = ["begin 1", "finish 1", "send 1", "apply 1", "begin 2", "finish 2", "send 2"]
    assert run({1, 2}, set(), 1, 2) == log


def test_a_step_that_is_held_draws_as_soon_as_the_one_before_is_applied() -> None:
    log = ["begin 1", "draw 1", "begin 2", "finish 1", "send 1", "apply 1", "draw 2", "finish 2", "send 2"]
    assert run({1, 2}, {2}, 1, 2, held={1, 2}) == log


def test_a_step_that_follows_and_is_done_is_answered_second() -> None:
    assert run({1}, {2}, 1, 2) == ["begin 1", "begin 2", "finish 1", "send 1", "apply 1", "send 2"]


def test_a_step_that_follows_begins_from_the_batch_before_the_last_answer_also_where_it_comes_late() -> None:
    worker = FakeWorker({1, 2}, {2})
    pipeline = StepPipeline(worker, lambda output: worker.log.append(f"send {output.step}"))
    for number in (1, 2, 3):
        pipeline.run(SchedulerOutput(number, b"", b""), 0.0)
        pipeline.settle()
    assert worker.log == [
        *("begin 1", "finish 1", "send 1", "begin 2", "apply 1", "finish 2", "send 2"),
        *("apply 2", "begin 3", "send 3"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_step_begins_from_depends_on_no_clock(seed: int) -> None:
    rng, numbers = random.Random(seed), range(1, 30)
    flying, following = ({n for n in numbers if rng.random() < 0.6} for _ in range(2))
    seen = []
    for patience in (0.0, 0.5, 1.0):
        worker = FakeWorker(flying, following)
        pipeline = StepPipeline(worker, lambda output: None)
        for number in numbers:
            pipeline.run(SchedulerOutput(number, b"", b""), 0.0)
            if rng.random() < patience:
                pipeline.settle()
        seen.append(worker.applied)
    assert seen == [seen[0]] * 3


@pytest.mark.parametrize("seed", range(20))
def test_every_step_is_answered_once_and_in_order(seed: int) -> None:
    rng, numbers = random.Random(seed), range(1, 30)
    followed, failed, held = ({n for n in numbers if rng.random() < 0.6} for _ in range(3))
    log = run(followed, failed, *numbers, held=held)
    assert [entry for entry in log if entry.startswith("send")] == [f"send {n}" for n in numbers]


def test_the_wait_belongs_to_the_step_that_was_waited_for() -> None:
    worker, waits = FakeWorker({1, 2}, {2}), []
    pipeline = StepPipeline(worker, lambda output: waits.append((output.step, output.wait_s)))
    pipeline.run(SchedulerOutput(1, b"", b""), 0.25)
    pipeline.run(SchedulerOutput(2, b"", b""), 0.0)
    pipeline.settle()
    assert waits == [(1, 0.25), (2, 0.0)]


class Runner:
    """Has the KV cache."""

    def finish(self) -> ModelRunnerOutput:
        return ModelRunnerOutput(1, b"", b"")


class Forgetful:
    """A worker whose step is kept by whoever still wants its answer."""

    def __init__(self) -> None:
        self.runner: Callable[[], Runner | None] = lambda: None

    def can_follow(self, step: SchedulerOutput) -> bool:
        return False

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight:
        runner = Runner()
        self.runner = weakref.ref(runner)
        return StepInFlight(runner.finish, lambda: None)


def test_a_step_that_is_answered_keeps_no_kv_cache_till_it_is_applied() -> None:
    worker = Forgetful()
    pipeline = StepPipeline(worker, lambda output: None)
    pipeline.run(SchedulerOutput(1, b"", b""), 0.0)
    assert worker.runner() is not None
    pipeline.settle()
    assert worker.runner() is None

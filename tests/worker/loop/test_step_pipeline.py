"""Answers come in the order of the steps, and a step begins early only where the worker says that it may."""

from __future__ import annotations

import random

import pytest

from engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from worker.step_graphs import StepInFlight
from worker.step_pipeline import StepPipeline


class FakeWorker:
    """Leaves the steps of `flying` running, and lets those of `following` begin early; logs what happens."""

    def __init__(self, flying: set[int], following: set[int]) -> None:
        self._flying = flying
        self._following = following
        self._running: list[int] = []
        self.log: list[str] = []

    def can_follow(self, step: SchedulerOutput) -> bool:
        assert self._running, "nobody asks while nothing runs"
        return step.step in self._following

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight:
        number = step.step
        assert not self._running or number in self._following
        self.log.append(f"begin {number}")
        if number not in self._flying:
            return ModelRunnerOutput(number, b"", b"")
        self._running.append(number)
        return StepInFlight(lambda: self._finish(number))

    def _finish(self, number: int) -> ModelRunnerOutput:
        assert self._running.pop(0) == number
        self.log.append(f"finish {number}")
        return ModelRunnerOutput(number, b"", b"")


def run(flying: set[int], following: set[int], *steps: int) -> list[str]:
    worker = FakeWorker(flying, following)
    pipeline = StepPipeline(worker, lambda output: worker.log.append(f"send {output.step}"))
    for number in steps:
        pipeline.run(SchedulerOutput(number, b"", b""), 0.0)
    pipeline.settle()
    assert not pipeline.is_running
    return worker.log


def test_a_step_that_is_done_is_answered_at_once() -> None:
    assert run(set(), set(), 1, 2) == ["begin 1", "send 1", "begin 2", "send 2"]


def test_a_step_that_may_follow_begins_before_the_one_before_is_finished() -> None:
    log = ["begin 1", "begin 2", "finish 1", "send 1", "finish 2", "send 2"]
    assert run({1, 2}, {2}, 1, 2) == log


def test_a_step_that_may_not_follow_begins_after_the_one_before() -> None:
    log = ["begin 1", "finish 1", "send 1", "begin 2", "finish 2", "send 2"]
    assert run({1, 2}, set(), 1, 2) == log


def test_a_step_that_follows_and_is_done_is_answered_second() -> None:
    assert run({1}, {2}, 1, 2) == ["begin 1", "begin 2", "finish 1", "send 1", "send 2"]


@pytest.mark.parametrize("seed", range(20))
def test_every_step_is_answered_once_and_in_order(seed: int) -> None:
    rng, numbers = random.Random(seed), range(1, 30)
    log = run(*({n for n in numbers if rng.random() < 0.6} for _ in range(2)), *numbers)
    assert [entry for entry in log if entry.startswith("send")] == [f"send {n}" for n in numbers]


def test_the_wait_belongs_to_the_step_that_was_waited_for() -> None:
    worker, waits = FakeWorker({1, 2}, {2}), []
    pipeline = StepPipeline(worker, lambda output: waits.append((output.step, output.wait_s)))
    pipeline.run(SchedulerOutput(1, b"", b""), 0.25)
    pipeline.run(SchedulerOutput(2, b"", b""), 0.0)
    pipeline.settle()
    assert waits == [(1, 0.25), (2, 0.0)]

"""When a step counts as overdue or lost, and that a pause of the engine is not held against the workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.server.step_watch import LATE_S, LOOK_S, OVERDUE_S, StepWatch
from tests.engine_core.engine_driver import EngineDriver


class Recorder(SimulatedExecutor):
    """Workers that are late, or stopped, as told."""

    stopped_ranks = ""
    discounted_s = 0.0

    def stopped(self) -> str:
        return self.stopped_ranks

    def owing(self) -> str:
        return "the worker of rank 1"

    def discount(self, pause_s: float) -> None:
        self.discounted_s += pause_s


class Bench:
    """An engine with one request, whose steps take step_s until a step hangs."""

    def __init__(self, step_s: float, num_steps: int = 5) -> None:
        self.clock = ManualClock(100.0)
        self.executor = Recorder(self.clock, SimulatedModel(), step_time_s=step_s)
        self.executor.start()
        self.executor.init_kv_cache(64)
        self.executor.receive()
        self.engine = EngineCore(SchedulerConfig(), SimulatedModel().info(), 1, self.clock)
        self.watch = StepWatch(self.executor, self.clock)
        sampling = SequenceSampling(seed=1, ignore_eos=True)
        self.engine.add(b"a", AddRequest(1, "r", pack_int32([1, 2, 3]), sampling))
        for _ in range(num_steps):
            self.submit()
            self.clock.advance(step_s)
            (output,) = self.executor.receive()
            assert isinstance(output, ModelRunnerOutput)
            self.engine.apply(output)
            self.watch.look(self.engine)
        self.submit()

    def submit(self) -> None:
        step = self.engine.plan()
        assert step is not None
        self.executor.submit(step)

    def wait(self, seconds: float) -> None:
        wait(self.clock, lambda: self.watch.look(self.engine), seconds)


def wait(clock: ManualClock, look: Callable[[], None], seconds: float) -> None:
    """Let the loop come round as often as it does while a step is in flight."""
    end_s = clock.monotonic() + seconds
    while clock.monotonic() < end_s - 1e-9:
        clock.advance(min(LOOK_S, end_s - clock.monotonic()))
        look()


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.001, LATE_S), (0.5, 10.0)])
def test_a_step_is_lost_after_twenty_times_the_expected(step_s: float, limit_s: float) -> None:
    bench = Bench(step_s)
    bench.wait(limit_s - 0.01)
    with pytest.raises(WorkerError, match="the worker of rank 1 did not finish step 6 within"):
        bench.wait(LOOK_S)


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.001, OVERDUE_S), (0.15, 1.5)])
def test_a_step_is_overdue_after_ten_times_the_expected(step_s: float, limit_s: float) -> None:
    bench = Bench(step_s)
    bench.wait(limit_s - 0.02)
    assert bench.watch.stalled(bench.engine) == ""
    bench.wait(0.04)
    assert bench.watch.stalled(bench.engine).startswith("step 6 has taken")


def test_a_step_is_given_the_time_of_the_blocks_that_it_moves() -> None:
    config = SchedulerConfig(
        max_num_seqs=1,
        max_model_len=48,
        block_size=4,
        num_blocks=6,
        num_host_blocks=9,
        move_block_ns=100_000_000,
    )
    driver = EngineDriver(config)
    watch = StepWatch(driver.executor, driver.clock)
    driver.add(range(17), max_tokens=1)
    driver.run()
    driver.add(range(20, 37), max_tokens=1)
    step = driver.plan()
    assert step is not None
    assert len(step.moves_from) == 3 * 4, "what the first prompt has left in the pool"
    assert driver.engine.step_times.expected_s() == pytest.approx(1.0 + 3 * 0.1)
    wait(driver.clock, lambda: watch.look(driver.engine), 20 * 1.3 - 0.1)
    with pytest.raises(WorkerError, match="did not finish step 2 within 26 s"):
        wait(driver.clock, lambda: watch.look(driver.engine), LOOK_S)


def test_nothing_is_expected_of_the_first_steps() -> None:
    bench = Bench(0.001, num_steps=0)
    bench.wait(30.0)
    assert bench.watch.stalled(bench.engine) == ""


def test_a_worker_that_is_stopped_in_a_first_step_is_lost_all_the_same() -> None:
    bench = Bench(0.1, num_steps=0)
    bench.wait(50.0)
    bench.executor.stopped_ranks = "the worker"
    bench.wait(LATE_S - LOOK_S)
    # It goes on, and is stopped once more.
    bench.executor.stopped_ranks = ""
    bench.wait(LOOK_S)
    bench.executor.stopped_ranks = "the worker"
    bench.wait(LATE_S)
    with pytest.raises(
        WorkerError, match="did not finish step 1 within 2 s; stopped by a signal: the worker"
    ):
        bench.wait(LOOK_S)


def test_a_prompt_is_given_the_time_of_prompts() -> None:
    bench = Bench(0.2, num_steps=1)
    expected_s = bench.engine.step_times.expected_s()
    assert expected_s is None, "no step that only decodes has been seen"
    bench.wait(30.0)


def test_stopped_workers_are_told_of_at_once() -> None:
    bench = Bench(0.001)
    bench.executor.stopped_ranks = "the worker"
    assert bench.watch.stalled(bench.engine) == "stopped by a signal: the worker"
    with pytest.raises(WorkerError, match="stopped by a signal: the worker"):
        bench.wait(3.0)


def test_a_pause_of_the_engine_is_not_held_against_the_workers() -> None:
    bench = Bench(0.001)
    bench.wait(0.5)
    bench.clock.advance(30.0)
    bench.watch.look(bench.engine)
    assert bench.executor.discounted_s == 30.0
    bench.wait(1.4)
    assert bench.watch.stalled(bench.engine).startswith("step 6 has taken 1.9 s")
    with pytest.raises(WorkerError, match="within 2 s"):
        bench.wait(LOOK_S)


def test_a_step_that_began_after_the_pause_is_not_given_more_time() -> None:
    bench = Bench(0.001)
    bench.clock.advance(0.001)
    bench.engine.apply(*bench.executor.receive())  # type: ignore[arg-type]
    bench.watch.look(bench.engine)
    bench.clock.advance(30.0)
    bench.submit()
    bench.watch.look(bench.engine)
    assert bench.executor.discounted_s == 0.0


def test_an_idle_engine_need_not_be_looked_at() -> None:
    bench = Bench(0.001)
    assert bench.watch.next_due_s(bench.engine) < float("inf")
    bench.engine.abort(b"a", [1])
    bench.engine.start_over()
    assert bench.watch.next_due_s(bench.engine) == float("inf")
    assert bench.watch.stalled(bench.engine) == ""


def test_the_median_is_of_steps_and_not_of_the_time_between_them() -> None:
    bench = Bench(0.5)
    for _ in range(9):
        bench.clock.advance(0.5)
        bench.engine.apply(*bench.executor.receive())  # type: ignore[arg-type]
        bench.clock.advance(100.0)
        bench.submit()
    assert bench.engine.stats().median_step_s == pytest.approx(0.5)

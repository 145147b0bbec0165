"""The workers are lost: what the engine forgets, what it keeps, and that nobody notices it by the tokens."""

from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.scenarios import POISON_SEED, Poison

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, block_size=4, num_blocks=64
)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("num_turns", range(6))
def test_every_request_goes_on_with_the_same_tokens(depth: int, num_turns: int) -> None:
    driver = EngineDriver(CONFIG, depth=depth)
    for i in range(6):
        driver.add([1, 2, 3, i + 1], ignore_eos=True, max_tokens=10, logprobs=1, prompt_logprobs=0)
    for _ in range(num_turns):
        driver.turn()
    while driver.engine.num_steps_in_flight < depth and driver.plan() is not None:
        pass
    driver.lose_worker()
    assert driver.engine.stats().num_running == 0
    driver.run()
    assert driver.engine.stats().num_worker_restarts == 1
    assert driver.engine.stats().num_preemptions == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_those_that_ran_are_first_again(policy: str) -> None:
    driver = EngineDriver(SchedulerConfig(max_num_seqs=3, max_model_len=64, block_size=4, policy=policy))
    sequences = [driver.add([1, 2, 3], tenant=str(i % 2), max_tokens=20, ignore_eos=True) for i in range(7)]
    driver.turn()
    ran = [sequence.handle for sequence in sequences if sequence.started is not None]
    assert len(ran) == 3
    driver.lose_worker()
    driver.turn()
    running = driver.engine.scheduler.running
    assert sorted(running.request_at(row).handle for row in running.order.tolist()) == ran
    driver.run()


def test_what_was_cached_is_forgotten_and_cached_again() -> None:
    driver = EngineDriver(CONFIG)
    prompt = list(range(1, 13))
    for _ in range(2):
        driver.add(prompt, max_tokens=2, ignore_eos=True)
        driver.run()
    hits = driver.engine.stats().prefix_cache_hits
    assert hits == 8
    driver.lose_worker()
    assert driver.engine.stats().num_cached_blocks == 0
    assert driver.router.hashes("GPU") == set(), "the router was told that nothing is cached"
    for _ in range(2):
        driver.add(prompt, max_tokens=2, ignore_eos=True)
        driver.run()
    assert driver.engine.stats().prefix_cache_hits == 2 * hits


def test_the_offload_tier_is_lost_with_moves_that_were_planned() -> None:
    config = SchedulerConfig(
        max_num_seqs=2, max_model_len=32, block_size=4, num_blocks=8, num_host_blocks=16, watermark_percent=0
    )
    driver = EngineDriver(config)
    for i in range(4):
        driver.add([i + 1] * 20, max_tokens=2, ignore_eos=True)
        driver.run()
    assert driver.engine.stats().num_used_host_blocks > 0
    driver.add([1] * 20, max_tokens=2, ignore_eos=True)
    driver.engine.plan()
    driver.lose_worker()
    assert driver.engine.stats().num_used_host_blocks == 0
    driver.run()


def test_an_aborted_request_is_not_brought_back() -> None:
    driver = EngineDriver(CONFIG, depth=2)
    gone, stays = (driver.add([1, 2, i], max_tokens=8, ignore_eos=True) for i in (3, 4))
    driver.turn()
    driver.plan()
    driver.abort(gone)
    driver.lose_worker()
    assert driver.engine.num_requests == 1
    driver.run()
    assert len(stays.output) == 8


def test_a_tenant_does_not_pay_twice_for_a_token() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=64, block_size=4, policy="fair")

    def served(losses: int) -> int:
        driver = EngineDriver(config, depth=2)
        driver.add([1, 2, 3, 4], tenant="a", max_tokens=20, ignore_eos=True)
        for _ in range(losses):
            driver.turn()
            driver.plan()
            driver.lose_worker()
        driver.run()
        return driver.engine.scheduler.waiting.counters.virtual(0)  # type: ignore[attr-defined]

    assert served(losses=5) == served(losses=0)


def test_the_one_request_that_workers_die_of_ends_and_the_others_are_whole() -> None:
    driver = EngineDriver(CONFIG, depth=2, survives=Poison().survives)
    others = [driver.add([1, 2, i], max_tokens=8, ignore_eos=True) for i in range(1, 3)]
    poison = driver.add([7, 7], seed=POISON_SEED, temperature=1.0)
    others += [driver.add([2, 2, i], max_tokens=8, ignore_eos=True) for i in range(1, 6)]
    driver.run()
    assert poison.finished is not None
    assert (poison.finished.reason, poison.finished.error_code) == (FinishReason.ERROR, "request_unsafe")
    assert poison.finished.error_status == 500
    assert [len(sequence.output) for sequence in others] == [8] * 7
    assert driver.engine.stats().num_worker_restarts <= 4


def test_sequences_of_an_unsafe_request_that_wait_for_a_row_end_with_it() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=64, block_size=4)
    engine = EngineCore(config, SimulatedModel().info(), epoch=1, clock=ManualClock())
    prompt = pack_int32([1, 2, 3])
    engine.add(b"f", *(AddRequest(i, f"r-{i}", prompt, SequenceSampling(seed=i)) for i in range(5)))
    for _ in range(2):
        assert engine.plan() is not None
        engine.start_over()
    (outputs,) = engine.take_outputs().values()
    assert [(end.handle, end.error_code) for end in outputs.finished] == [
        (i, "request_unsafe") for i in range(5)
    ]
    assert not engine.has_requests


def test_a_suspect_that_is_held_back_can_be_aborted() -> None:
    driver = EngineDriver(CONFIG)
    first, second = (driver.add([1, 2, i], max_tokens=8, ignore_eos=True) for i in (3, 4))
    for _ in range(2):
        driver.plan()
        driver.lose_worker()
    driver.plan()
    assert driver.engine.stats().num_running == 1, "one at a time"
    driver.abort(second)
    driver.apply()
    driver.run()
    assert len(first.output) == 8


def test_suspects_go_on_when_the_one_on_trial_leaves_before_it_has_run() -> None:
    engine = EngineCore(SchedulerConfig(), SimulatedModel().info(), 1, ManualClock(1.0))
    for handle in (1, 2, 3):
        sampling = SequenceSampling(seed=handle, ignore_eos=True)
        engine.add(b"f", AddRequest(handle, f"r{handle}", pack_int32([1, 2, 3]), sampling))
    for _ in range(2):
        assert engine.plan() is not None
        engine.start_over()
    engine.abort(b"f", [1])
    step = engine.plan()
    assert step is not None
    assert len(step.new_rows) == 1, "the next one, alone"
    engine.check_integrity()

"""Several worker processes that look like one, until one of them is lost: then it is named."""

from __future__ import annotations

import psutil
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.errors import ModelLoadError, WorkerError
from splitserve.engine_core.executor.ranks import Ranks
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION, ModelInfo
from splitserve.engine_core.ipc.worker_messages import (
    KVCacheReady,
    LoadProgress,
    MemoryNeed,
    MemoryReleased,
    ModelRunnerOutput,
    WorkerHello,
    WorkerReady,
)
from tests.engine_core.executor.test_workers import DEADLINE_S, MakeBench, make_bench

__all__ = ["make_bench"]


def test_two_workers_are_heard_as_one(make_bench: MakeBench) -> None:
    before = set(psutil.Process().children())
    bench = make_bench("well", "well")
    children = set(psutil.Process().children()) - before
    assert len(children) == 2
    bench.serve()
    assert [type(message) for message in bench.messages if not isinstance(message, LoadProgress)] == [
        WorkerHello,
        WorkerReady,
        KVCacheReady,
    ]
    ready = next(message for message in bench.messages if isinstance(message, WorkerReady))
    assert (ready.available_bytes, ready.block_bytes) == (999, 11), "what the poorer rank can do"
    assert bench.messages[-1] == KVCacheReady(10, move_block_ns=8), "the slower rank's"
    bench.step(1)
    bench.step(2)
    bench.wait_for(ModelRunnerOutput, 2)
    assert [message.step for message in bench.messages if isinstance(message, ModelRunnerOutput)] == [1, 2]
    bench.executor.shutdown(DEADLINE_S)
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("witness", ["lose another rank", "lose another rank and end", "hang in a step"])
def test_a_rank_killed_in_a_step_is_named_whoever_is_heard_first(make_bench: MakeBench, witness: str) -> None:
    bench = make_bench(witness, "killed in a step", "lose another rank and end")
    bench.begin_third_step()
    assert "the worker of rank 1 was lost: killed by SIGKILL" in str(bench.failure())


def test_the_words_of_a_rank_that_fails_count_more_than_those_of_who_misses_it(
    make_bench: MakeBench,
) -> None:
    bench = make_bench("lose another rank and end", "end in a step with a word")
    bench.begin_third_step()
    assert "the worker of rank 1 failed (worker_failed): the device fell off" in str(bench.failure())


def test_a_rank_that_hangs_is_told_by_those_that_wait_for_it(make_bench: MakeBench) -> None:
    bench = make_bench("lose another rank", "hang in a step", "lose another rank and end")
    bench.begin_third_step()
    error = bench.failure()
    assert isinstance(error, WorkerError)
    assert str(error).startswith("the worker of rank 1 did not take part: ")


def test_a_rank_whose_answer_is_overdue_is_named(make_bench: MakeBench) -> None:
    bench = make_bench("well", "hang in a step")
    bench.serve()
    for number in (1, 2):
        bench.step(number)
        # Both ranks have answered.
        bench.wait_until(lambda: bench.executor.poll_timeout_s() is None)
    bench.step(3)
    bench.wait_for(ModelRunnerOutput, 3)
    bench.clock.advance(5.1)
    assert bench.executor.poll_timeout_s() == 0.0
    with pytest.raises(WorkerError, match="the worker of rank 1 did not finish step 3 within 5 s"):
        bench.executor.receive()


def test_one_rank_that_refuses_the_model_refuses_it_for_all(make_bench: MakeBench) -> None:
    error = make_bench("load for ever", "refuse the model").failure()
    assert isinstance(error, ModelLoadError)


def hello(rank: int) -> WorkerHello:
    return WorkerHello(PROTOCOL_VERSION, "test", rank, 1)


def test_progress_is_that_of_all_ranks_once_all_have_begun() -> None:
    ranks = Ranks(2, 0, 5.0, ManualClock())
    assert ranks.take(1, hello(1)) is None
    assert ranks.take(0, hello(0)) is not None
    assert ranks.take(0, LoadProgress(60, 100)) is None
    assert ranks.take(1, LoadProgress(0, 50)) == LoadProgress(60, 150)
    assert ranks.take(1, LoadProgress(50, 50)) == LoadProgress(110, 150)


def test_memory_is_free_once_it_is_at_every_rank_each_time() -> None:
    ranks = Ranks(2, 0, 5.0, ManualClock())
    for _ in range(2):
        ranks.expect_caches()
        assert not ranks.are_serving
        assert [ranks.take(rank, KVCacheReady(4, 1 + rank)) for rank in (1, 0)] == [None, KVCacheReady(4, 2)]
        assert [ranks.take(rank, MemoryReleased()) for rank in (1, 0)] == [None, MemoryReleased()]
        # They hear of a log level, say, all the same.
        assert ranks.are_serving


def test_memory_is_free_at_every_rank_though_it_is_wanted_again_before() -> None:
    ranks = Ranks(2, 0, 5.0, ManualClock())
    assert ranks.take(0, MemoryReleased()) is None
    ranks.expect_caches()
    assert ranks.take(0, KVCacheReady(4)) is None
    assert ranks.take(1, MemoryReleased()) == MemoryReleased()
    assert ranks.take(1, KVCacheReady(4)) == KVCacheReady(4)


def test_needs_are_the_largest_of_all_ranks_and_memory_the_least() -> None:
    ranks = Ranks(2, 0, 5.0, ManualClock())
    model = ModelInfo("m", "LlamaForCausalLM", "bfloat16", 1000, 1000, [2])
    need = MemoryNeed(model, "cpu", 90, 50, 8, 4, 20, {"int8": 30})
    assert ranks.take(1, need) is None
    assert ranks.take(0, MemoryNeed(model, "cpu", 80, 40, 9, 5, 30, {"int8": 35})) == MemoryNeed(
        model, "cpu", 80, 50, 9, 5, 20, {"int8": 35}
    )


def test_an_answer_of_the_output_rank_is_not_held_back_by_another() -> None:
    clock = ManualClock(100.0)
    ranks = Ranks(2, 1, 5.0, clock)
    ranks.submit(1)
    ranks.submit(2)
    answer = ModelRunnerOutput(1, b"", b"")
    assert ranks.take(1, answer) is answer
    clock.advance(4.0)
    assert ranks.take(0, ModelRunnerOutput(1, b"", b"")) is None
    # Rank 1 began its second step four seconds ago, rank 0 now.
    assert ranks.deadline_s() == 105.0
    clock.advance(1.0)
    with pytest.raises(WorkerError, match="rank 1 did not finish step 2 within 5 s"):
        ranks.check_deadlines()

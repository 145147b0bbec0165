"""A model without a KV cache: prompts are computed whole, within the budget, and take no blocks."""

from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import ContextLengthError, DeviceMemoryError
from splitserve.engine_core.ipc.codec import pack_float32, pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest, StepOutputs
from splitserve.engine_core.ipc.wire import ModelInfo, Pooled
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, RowError, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

FRONTEND = b"frontend"
CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=10,
    max_model_len=64,
    num_blocks=0,
    enable_prefix_caching=False,
    target_itl_s=0.01,
)


@pytest.fixture
def core() -> EngineCore:
    model = ModelInfo("model", "X", "float32", 50, 64, [], embedding_size=2)
    return EngineCore(CONFIG, model, 7, ManualClock(), secret=b"s" * 32)


def ask(core: EngineCore, *lengths: int) -> None:
    for handle, length in enumerate(lengths):
        sampling = SequenceSampling(seed=0, max_tokens=0)
        prompt = pack_int32(range(1, length + 1))
        core.add(FRONTEND, AddRequest(handle, f"r{handle}", prompt, sampling, pools=True))


def plan(core: EngineCore) -> SchedulerOutput:
    step = core.plan()
    assert step is not None
    core.check_integrity()
    return step


def lengths_of(step: SchedulerOutput) -> list[int]:
    return unpack_int32(step.num_tokens).tolist()


def answer(core: EngineCore, step: SchedulerOutput, errors: list[RowError] | None = None) -> None:
    rows = [] if errors else unpack_int32(step.rows).tolist()
    pooled = [Pooled(row, pack_float32([row, 1])) for row in rows]
    core.apply(
        ModelRunnerOutput(
            step.step, pack_int32(rows), pack_int32([0] * len(rows)), errors=errors or [], pooled=pooled
        )
    )
    core.check_integrity()


def outputs(core: EngineCore) -> StepOutputs:
    return core.take_outputs()[FRONTEND]


def test_the_longest_prompt_is_what_a_step_computes(core: EngineCore) -> None:
    assert core.max_num_tokens == 10
    with pytest.raises(ContextLengthError, match="10"):
        ask(core, 11)
    assert core.plan() is None


def test_prompts_that_do_not_fit_together_run_one_after_the_other(core: EngineCore) -> None:
    ask(core, 6, 5, 3, 10, 1)
    first, second = plan(core), plan(core)
    assert [lengths_of(first), lengths_of(second)] == [[6], [5, 3]]
    assert all(row.block_ids == b"" for row in first.new_rows + second.new_rows)
    # Two steps are in flight.
    assert core.plan() is None
    answer(core, first)
    third = plan(core)
    assert lengths_of(third) == [10]
    answer(core, second)
    fourth = plan(core)
    assert lengths_of(fourth) == [1]
    answer(core, third)
    answer(core, fourth)
    told = outputs(core)
    assert (
        sorted(entry.key for entry in told.pooled)
        == sorted(end.handle for end in told.finished)
        == list(range(5))
    )
    assert core.plan() is None
    assert not core.has_requests


def test_no_more_run_than_there_are_rows(core: EngineCore) -> None:
    ask(core, *[1] * 6)
    first = plan(core)
    assert lengths_of(first) == [1] * 4
    assert core.plan() is None
    answer(core, first)
    assert lengths_of(plan(core)) == [1] * 2


def test_a_prompt_longer_than_a_budget_that_memory_has_shrunk_runs_alone(core: EngineCore) -> None:
    ask(core, 9, 1)
    step = plan(core)
    assert lengths_of(step) == [9, 1]
    rows = unpack_int32(step.rows).tolist()
    answer(core, step, [RowError(row, DeviceMemoryError.code, "no memory") for row in rows])
    # Half of the step that failed.
    assert core.scheduler.budget.num_tokens == 5
    alone = plan(core)
    assert lengths_of(alone) == [9]
    other = plan(core)
    assert lengths_of(other) == [1]
    answer(core, alone)
    answer(core, other)
    assert [entry.key for entry in outputs(core).pooled] == [0, 1]


def test_requests_go_on_when_workers_are_lost(core: EngineCore) -> None:
    ask(core, 6, 5)
    plan(core), plan(core)
    core.start_over()
    core.check_integrity()
    first, second = plan(core), plan(core)
    assert [lengths_of(first), lengths_of(second)] == [[6], [5]]
    answer(core, first)
    answer(core, second)
    assert [entry.key for entry in outputs(core).pooled] == [0, 1]

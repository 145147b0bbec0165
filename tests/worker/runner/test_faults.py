"""A fault of one row ends that row; a batch that engine and worker disagree about ends the worker."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.errors import ConfigError, ProtocolError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.conftest import NUM_BLOCKS, start_worker
from tests.worker.runner.driver import Driver, Job

POISON = 7


@pytest.fixture(scope="module")
def poisoned_worker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, WorkerConfig]:
    """A model whose embedding of one token is not a number."""
    return start_worker(write_tiny_llama(tmp_path_factory.mktemp("poisoned"), poisoned_token=POISON))


@pytest.fixture
def worker(tiny_worker: tuple[Worker, WorkerConfig]) -> Worker:
    """A worker with an empty batch."""
    tiny_worker[0].init_kv_cache(NUM_BLOCKS)
    return tiny_worker[0]


def new_row(row: int, **fields: object) -> NewRow:
    values: dict[str, object] = {
        "token_ids": pack_int32([4, 5, 6]),
        "num_prompt_tokens": 3,
        "num_computed_tokens": 0,
        "block_ids": pack_int32([row]),
        "sampling": SequenceSampling(seed=row, temperature=0.0),
    }
    return NewRow(row=row, **(values | fields))  # type: ignore[arg-type]


def step(counts: dict[int, int], *new_rows: NewRow, **fields: Any) -> SchedulerOutput:
    return SchedulerOutput(
        1,
        rows=pack_int32(list(counts)),
        num_tokens=pack_int32(list(counts.values())),
        new_rows=list(new_rows),
        **fields,
    )


def sampled_rows(output: ModelRunnerOutput) -> list[int]:
    return unpack_int32(output.rows).tolist()


def test_a_poisoned_request_fails_and_its_neighbours_do_not_notice(
    poisoned_worker: tuple[Worker, WorkerConfig],
) -> None:
    worker, config = poisoned_worker
    rng = random.Random(3)
    jobs = [
        Job(
            prompt=[rng.choice([t for t in range(VOCAB) if t != POISON]) for _ in range(rng.randint(2, 40))],
            sampling=SequenceSampling(
                seed=i, logit_bias={POISON: -100.0}, logprobs=1, prompt_logprobs=i % 2 or None
            ),
            num_outputs=8,
        )
        for i in range(10)
    ]
    for sick in (2, 5, 8):
        jobs[sick].prompt[len(jobs[sick].prompt) // 2] = POISON
    Driver(worker, config, NUM_BLOCKS, rng).run(jobs)
    for i, job in enumerate(jobs):
        alone = job.again()
        Driver(worker, config, NUM_BLOCKS).run([alone])
        if i in (2, 5, 8):
            assert job.error is not None
            assert job.error.code == "numerical_error"
            assert job.tokens == []
        else:
            assert job == alone
            assert len(job.tokens) == 8


def test_a_failed_row_is_reported_in_every_step_that_names_it_until_freed(
    poisoned_worker: tuple[Worker, WorkerConfig],
) -> None:
    worker, _ = poisoned_worker
    worker.init_kv_cache(NUM_BLOCKS)
    sick = new_row(0, token_ids=pack_int32([4, POISON, 6]))
    first = worker.execute(step({0: 3, 1: 3}, sick, new_row(1)))
    assert [error.row for error in first.errors] == [0]
    assert sampled_rows(first) == [1]
    # The engine planned this step before it knew.
    second = worker.execute(step({0: 1, 1: 1}))
    assert (second.errors, sampled_rows(second)) == (first.errors, [1])
    grown = {"block_rows": pack_int32([1]), "block_ids": pack_int32([9])}
    third = worker.execute(step({0: 3, 1: 1}, new_row(0), freed_rows=pack_int32([0]), **grown))
    assert (third.errors, sampled_rows(third)) == ([], [0, 1])


@pytest.mark.parametrize(
    "bad",
    [
        {"token_ids": pack_int32([4, VOCAB, 6])},
        {"token_ids": pack_int32([4, -1, 6])},
        {"token_ids": pack_int32([4] * 193), "block_ids": pack_int32(range(49)), "num_prompt_tokens": 193},
        {"sampling": SequenceSampling(logit_bias={VOCAB: 1.0})},
        {"sampling": SequenceSampling(stop_token_ids=(-1,), min_tokens=1)},
    ],
)
def test_content_outside_the_model_ends_only_its_own_row(bad: dict[str, object], worker: Worker) -> None:
    output = worker.execute(step({0: 3, 1: 3}, new_row(0, **bad), new_row(1)))
    assert [(error.row, error.code) for error in output.errors] == [(0, "invalid_value")]
    assert sampled_rows(output) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        step({0: 4}, new_row(0)),
        step({0: 0}, new_row(0)),
        step({1: 1}, new_row(0)),
        step({6: 1}, new_row(0)),
        step({0: 3}, new_row(0), new_row(0)),
        step({0: 3}, new_row(6)),
        step({0: 3}, new_row(0, block_ids=b"")),
        step({0: 3}, new_row(0, block_ids=pack_int32([NUM_BLOCKS]))),
        step({0: 3}, new_row(0, block_ids=pack_int32([0] * 60))),
        step({0: 3}, new_row(0), freed_rows=pack_int32([0])),
        step({0: 3}, new_row(0), block_rows=pack_int32([0]), block_ids=pack_int32([1, 2])),
        SchedulerOutput(1, rows=pack_int32([0]), num_tokens=pack_int32([1, 1]), new_rows=[new_row(0)]),
        step({0: 65}, new_row(0, token_ids=pack_int32([4] * 65), block_ids=pack_int32(range(17)))),
    ],
)
def test_a_step_that_does_not_fit_the_batch_is_refused(wrong: SchedulerOutput, worker: Worker) -> None:
    with pytest.raises(WorkerError):
        worker.execute(wrong)


def test_a_malformed_column_is_refused(worker: Worker) -> None:
    with pytest.raises(ProtocolError):
        worker.execute(SchedulerOutput(1, rows=b"abc", num_tokens=b"abc"))


def test_steps_and_caches_need_what_comes_before_them(tiny_llama: Path) -> None:
    worker = Worker(WorkerConfig(model=str(tiny_llama), num_threads=1))
    with pytest.raises(WorkerError, match="before the model was loaded"):
        worker.init_kv_cache(4)
    with pytest.raises(WorkerError, match="before the KV cache"):
        worker.execute(step({}))
    worker.load(lambda loaded_bytes, total_bytes: None)
    with pytest.raises(ConfigError, match="at least one block"):
        worker.init_kv_cache(0)

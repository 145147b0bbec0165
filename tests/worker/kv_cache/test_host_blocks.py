"""Blocks that went to host memory and came back elsewhere are, bit for bit, as if they had stayed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.kv_cache import host_blocks
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import HEAD_DIM, NUM_KV_HEADS, NUM_LAYERS, VOCAB, write_tiny_llama
from tests.worker.runner.conftest import start_worker
from tests.worker.runner.driver import Driver
from tests.worker.runner.test_batch_invariance import random_jobs, run_alone

NUM_BLOCKS = 96
NUM_HOST_BLOCKS = 40
BLOCK_BYTES = 2 * NUM_LAYERS * NUM_KV_HEADS * 4 * HEAD_DIM * 4


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Worker, WorkerConfig]:
    return start_worker(write_tiny_llama(tmp_path_factory.mktemp("tiny"), dtype=request.param))


@pytest.fixture
def worker(loaded: tuple[Worker, WorkerConfig]) -> Worker:
    """A worker with an empty batch and a CPU offload tier."""
    loaded[0].init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    return loaded[0]


def run(worker: Worker, row: int, count: int, **fields: object) -> ModelRunnerOutput:
    return worker.execute(
        SchedulerOutput(1, pack_int32([row]), pack_int32([count]), **fields)  # type: ignore[arg-type]
    )


def new_row(row: int, tokens: list[int], block_ids: list[int], num_computed: int = 0) -> NewRow:
    sampling = SequenceSampling(seed=5, logprobs=4)
    return NewRow(row, pack_int32(tokens), len(tokens), num_computed, pack_int32(block_ids), sampling)


def sampled(output: ModelRunnerOutput) -> tuple[bytes, bytes, bytes]:
    (entry,) = output.logprobs
    return output.token_ids, entry.token_ids, entry.logprobs


def test_a_row_goes_on_in_other_blocks_after_its_own_were_overwritten(worker: Worker) -> None:
    tokens = [(31 * i) % VOCAB for i in range(11)]
    straight = [run(worker, 0, 11, new_rows=[new_row(0, tokens, [3, 7, 5])]), run(worker, 0, 1)]
    history = [*tokens, unpack_int32(straight[0].token_ids).item()]
    # The same once more: out to host blocks 2, 0, 1, while another prompt overwrites blocks 3, 7 and 5.
    host = [NUM_BLOCKS + 2, NUM_BLOCKS, NUM_BLOCKS + 1]
    again = run(worker, 1, 11, new_rows=[new_row(1, tokens, [3, 7, 5])], freed_rows=pack_int32([0]))
    run(
        worker,
        0,
        12,
        new_rows=[new_row(0, [9] * 12, [3, 7, 5])],
        freed_rows=pack_int32([1]),
        moves_from=pack_int32([3, 7, 5]),
        moves_to=pack_int32(host),
    )
    # Back into two of its old blocks in another order, and a new one, within the step that goes on.
    back = run(
        worker,
        1,
        1,
        new_rows=[new_row(1, history, [7, 60, 3], num_computed=11)],
        freed_rows=pack_int32([0]),
        moves_from=pack_int32(host),
        moves_to=pack_int32([7, 60, 3]),
    )
    assert sampled(again) == sampled(straight[0])
    # What follows depends on everything the row has seen.
    assert sampled(back) == sampled(straight[1])


@pytest.mark.parametrize("seed", range(8))
def test_preempted_requests_that_wait_in_host_memory_equal_themselves_alone(
    loaded: tuple[Worker, WorkerConfig], worker: Worker, seed: int
) -> None:
    config = loaded[1]
    rng = random.Random(seed)
    jobs = random_jobs(rng)
    driver = Driver(worker, config, NUM_BLOCKS, rng, NUM_HOST_BLOCKS)
    driver.run(jobs)
    assert driver.host.num_loads > 0
    for job in jobs:
        assert job == run_alone(worker, config, job)


def test_the_answer_tells_how_long_moves_took(worker: Worker) -> None:
    moved = run(
        worker,
        0,
        3,
        new_rows=[new_row(0, [4, 5, 6], [0])],
        moves_from=pack_int32([1]),
        moves_to=pack_int32([NUM_BLOCKS]),
    )
    assert 0 < moved.move_s < moved.compute_s
    assert run(worker, 0, 1).move_s == 0


def test_a_move_is_measured_only_if_there_is_a_tier(worker: Worker) -> None:
    assert worker.init_kv_cache(NUM_BLOCKS).move_block_ns == 0
    assert worker.init_kv_cache(1, 1).move_block_ns > 0
    assert worker.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS).move_block_ns > 0


@pytest.mark.parametrize(
    ("moves_from", "moves_to"),
    [([0], [NUM_BLOCKS + NUM_HOST_BLOCKS]), ([-1], [0]), ([0, 1], [2]), ([], [0])],
)
def test_a_move_to_nowhere_ends_the_worker_before_anything_is_copied(
    worker: Worker, moves_from: list[int], moves_to: list[int]
) -> None:
    before = run(worker, 0, 3, new_rows=[new_row(0, [4, 5, 6], [0])])
    bad = {"moves_from": pack_int32([1, *moves_from]), "moves_to": pack_int32([0, *moves_to])}
    with pytest.raises(WorkerError, match="step"):
        run(worker, 1, 3, new_rows=[new_row(1, [4, 5, 6], [1])], **bad)
    # Block 0 is what it was: another row reads it and comes to the same end.
    again = run(worker, 2, 1, new_rows=[new_row(2, [4, 5, 6], [0], num_computed=2)])
    assert sampled(again) == sampled(before)


def test_without_a_tier_a_host_place_is_nowhere(worker: Worker) -> None:
    worker.init_kv_cache(NUM_BLOCKS)
    row = [new_row(0, [4, 5, 6], [0])]
    with pytest.raises(WorkerError, match=f"beyond the {NUM_BLOCKS}"):
        run(worker, 0, 3, new_rows=row, moves_from=pack_int32([1]), moves_to=pack_int32([NUM_BLOCKS]))


def test_memory_that_is_not_there_is_refused_with_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = start_worker(write_tiny_llama(tmp_path / "tiny"))
    free = (NUM_BLOCKS + 10) * BLOCK_BYTES
    monkeypatch.setattr(host_blocks, "available_memory_bytes", lambda: free)
    worker.init_kv_cache(NUM_BLOCKS, 10)
    with pytest.raises(ConfigError, match=r"--kv-offload-gb asks for .* GiB are free"):
        worker.init_kv_cache(NUM_BLOCKS, 11)
    monkeypatch.setattr(host_blocks, "available_memory_bytes", lambda: 1 << 62)
    with pytest.raises(ConfigError, match="--kv-offload-gb: no memory for 1152921504606 blocks"):
        worker.init_kv_cache(NUM_BLOCKS, 1152921504606)

"""Recorded decode steps of several ranks, exchanges included, give the bits of eager ones."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.graphs.decode_graphs import DecodeGraph, DecodeGraphs
from splitserve.worker.worker import Worker
from tests.checkpoints import VOCAB_SIZE, CheckpointCache, CheckpointSpec
from tests.worker.graphs.pairing import batch_of, decoding_jobs
from tests.worker.parallel.ranks import ParallelWorker, RankPool
from tests.worker.parallel.test_tensor_parallel import CASES
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Driver, num_window_groups_of

NUM_BLOCKS, NUM_HOST_BLOCKS = 96, 40


def config_of(path: Path, num_ranks: int) -> WorkerConfig:
    return WorkerConfig(
        model=str(path),
        tensor_parallel_size=num_ranks,
        num_threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        block_size=4,
    )


def start(ranks: RankPool, config: WorkerConfig) -> ParallelWorker:
    parallel = ranks.load(config)
    parallel.init_kv_cache(NUM_BLOCKS * (1 + num_groups(parallel)), NUM_HOST_BLOCKS)
    return parallel


def num_groups(parallel: ParallelWorker) -> int:
    return parallel.ask(num_window_groups_of)[0]


def num_recorded(worker: Worker) -> tuple[int, int]:
    """Numbers of rows whose steps are replayed, and of those that are drawn in a replay too."""
    assert worker.runner is not None
    graphs = worker.runner.graphs
    if not isinstance(graphs, DecodeGraphs):
        return 0, 0
    recorded = list(graphs._graphs.values())
    forward = sum(graph._forward != DecodeGraph._record_forward.__get__(graph) for graph in recorded)
    return forward, sum(graph._draw != DecodeGraph._record_draw.__get__(graph) for graph in recorded)


@dataclass
class SetToken:
    """As if a row had drawn this token last."""

    row: int
    token_id: int

    def __call__(self, worker: Worker) -> None:
        batch = batch_of(worker)
        batch.tokens[self.row, batch.num_tokens[self.row] - 1] = self.token_id


def columns_of(worker: Worker) -> list[np.ndarray]:
    batch = batch_of(worker)
    return [batch.tokens, batch.num_tokens, batch.num_computed, np.array(sorted(batch.failures))]


@pytest.mark.parametrize(("case", "num_ranks"), [*((case, 2) for case in CASES), ("gpt2-six-heads", 3)])
def test_every_architecture_ends_alike(
    case: str, num_ranks: int, ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    spec = CASES.get(case) or CheckpointSpec("gpt2", {"n_embd": 96, "n_head": 6, "n_inner": 72})
    assert_ends_alike(
        ranks, config_of(checkpoints.get(dataclasses.replace(spec, dtype=torch.bfloat16)), num_ranks)
    )


def assert_ends_alike(ranks: RankPool, config: WorkerConfig) -> None:
    """Recorded steps and others give the same tokens, and bits of their logprobs, on all ranks."""
    num_ranks = config.tensor_parallel_size
    jobs = decoding_jobs(random.Random(7), VOCAB_SIZE, featured=0.3)
    ended = []
    for enforce_eager in (True, False):
        parallel = start(ranks, msgspec.structs.replace(config, enforce_eager=enforce_eager))
        done = [job.again() for job in jobs]
        sizes = (NUM_BLOCKS, random.Random(1), NUM_HOST_BLOCKS, False, num_groups(parallel))
        Driver(parallel, config, *sizes).run(done)
        ended.append(done)
        recorded = parallel.ask(num_recorded)
        assert recorded == [recorded[0]] * num_ranks
        assert enforce_eager or min(recorded[0]) > 1
        first, *others = parallel.ask(columns_of)
        assert all(
            np.array_equal(ours, theirs)
            for other in others
            for ours, theirs in zip(other, first, strict=True)
        )
    eager, replayed = ended
    assert replayed == eager, "tokens and the bits of their logprobs"


def test_a_row_that_gets_no_number_in_a_replay_fails_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    poison = 300
    parallel = start(ranks, config_of(write_tiny_llama(tmp_path, poisoned_token=poison), 2))
    rows = [
        NewRow(
            row, pack_int32([4 + row]), 1, 0, pack_int32([2 * row, 2 * row + 1]), SequenceSampling(seed=row)
        )
        for row in (0, 1)
    ]
    both = pack_int32([0, 1]), pack_int32([1, 1])
    parallel.execute(SchedulerOutput(1, *both, rows))
    for number in (2, 3):
        assert parallel.execute(SchedulerOutput(number, *both)).errors == []
    assert parallel.ask(num_recorded) == [(1, 1)] * 2
    parallel.ask(SetToken(1, poison))
    output = parallel.execute(SchedulerOutput(4, *both))
    assert [error.code for error in output.errors] == ["numerical_error"]
    assert unpack_int32(output.rows).tolist() == [0]
    for tokens, num_tokens, num_computed, failures in parallel.ask(columns_of):
        assert num_tokens[:2].tolist() == [5, 4]
        assert num_computed[:2].tolist() == [4, 4]
        assert failures.tolist() == [1]
        assert tokens[0, 4] == unpack_int32(output.token_ids)[0]


def test_stages_record_nothing(ranks: RankPool, tmp_path: Path) -> None:
    config = msgspec.structs.replace(config_of(write_tiny_llama(tmp_path), 2), pipeline_parallel_size=2)
    parallel = start(ranks, config)
    for number in range(1, 5):
        new = NewRow(0, pack_int32([4]), 1, 0, pack_int32([0, 1]), SequenceSampling(seed=1))
        step = SchedulerOutput(
            number,
            pack_int32([0]),
            pack_int32([1]),
            [new] if number == 1 else [],
            last_token_ids=pack_int32([9]),
        )
        parallel.execute(step)
    assert parallel.ask(num_recorded) == [(0, 0)] * 4

"""Ranks of several machines talk over gloo; here those of one do, and give the bits of shared memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

import worker.parallel.distributed
import worker.worker
from tests.checkpoints import CheckpointCache
from tests.worker.parallel.both import NUM_BLOCKS, NUM_HOST_BLOCKS, jobs_of
from tests.worker.parallel.ranks import ParallelWorker, RankPool
from tests.worker.parallel.test_tensor_parallel import CASES
from tests.worker.runner.driver import Driver, Job
from worker.config import WorkerConfig
from worker.parallel.distributed import DistributedGroup
from worker.parallel.shared_memory import SharedMemoryGroup, can_share_memory
from worker.worker import Worker


def cannot_share_memory(config: WorkerConfig, device: torch.device) -> bool:
    return False


@dataclass
class ShareMemory:
    """Whether models that this process loads from here on may."""

    is_possible: bool

    def __call__(self, _: Worker) -> None:
        answer = can_share_memory if self.is_possible else cannot_share_memory
        worker.worker.can_share_memory = worker.parallel.distributed.can_share_memory = answer


def kind_of_group(worker: Worker) -> type:
    assert worker._loaded is not None
    return type(worker._loaded.mesh.group)


@contextmanager
def without_shared_memory(parallel: ParallelWorker) -> Iterator[None]:
    parallel.ask(ShareMemory(False))
    try:
        yield
    finally:
        parallel.ask(ShareMemory(True))


def run(parallel: ParallelWorker, jobs: list[Job], tells_tokens: bool) -> list[Job]:
    parallel.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    done = [job.again() for job in jobs]
    driver = Driver(
        parallel,  # type: ignore[arg-type]
        parallel.config,
        NUM_BLOCKS,
        random.Random(1),
        NUM_HOST_BLOCKS,
        tells_tokens,
    )
    driver.run(done)
    return done


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("case", ["llama-biases", "llama-tied-odd-vocab"])
def test_tokens_and_logprobs_have_the_same_bits(
    case: str, num_stages: int, ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    config = WorkerConfig(
        model=str(checkpoints.get(dataclasses.replace(CASES[case], dtype=torch.bfloat16))),
        tensor_parallel_size=2,
        pipeline_parallel_size=num_stages,
        num_threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        block_size=4,
    )
    jobs = jobs_of(seed=3)
    shared = ranks.load(config)
    assert shared.ask(kind_of_group) == [SharedMemoryGroup] * config.num_ranks
    expected = run(shared, jobs, num_stages > 1)
    with without_shared_memory(shared):
        over_gloo = ranks.load(config)
        assert over_gloo.ask(kind_of_group) == [DistributedGroup] * config.num_ranks
        assert run(over_gloo, jobs, num_stages > 1) == expected

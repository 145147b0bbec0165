"""Ranks of several machines talk over gloo; here those of one do, and give the bits of shared memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from splitserve.engine_core.errors import RankLostError
from splitserve.worker import worker
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.parallel import distributed
from splitserve.worker.parallel.distributed import DistributedGroup
from splitserve.worker.parallel.shared_memory import SharedMemoryGroup, can_share_memory
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache
from tests.worker.ops.helpers import assert_same_bits, sum_in_order
from tests.worker.parallel.both import NUM_BLOCKS, NUM_HOST_BLOCKS, jobs_of
from tests.worker.parallel.ranks import ParallelWorker, RankPool
from tests.worker.parallel.test_tensor_parallel import CASES
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Driver, Job


def cannot_share_memory(config: WorkerConfig, device: Device) -> bool:
    return False


@dataclass
class ShareMemory:
    """Whether models that this process loads from here on may."""

    is_possible: bool

    def __call__(self, _: Worker) -> None:
        answer = can_share_memory if self.is_possible else cannot_share_memory
        for module in (worker, distributed):
            module.can_share_memory = answer  # type: ignore[attr-defined]


def group_of(rank: Worker) -> DistributedGroup:
    assert rank.loaded is not None
    group = rank.loaded.placement.mesh.group
    assert isinstance(group, DistributedGroup)
    return group


@dataclass
class SliceFrom:
    """A model's sums go by slices from here on where that saves so many bytes."""

    min_saved_bytes: int

    def __call__(self, rank: Worker) -> None:
        group_of(rank)._min_saved_bytes = self.min_saved_bytes


@dataclass
class Sum:
    """The sum of what the ranks draw, by a group over gloo; and whether it went by slices."""

    rows: int
    width: int
    dtype: torch.dtype
    part_dtype: torch.dtype
    has_bias: bool

    def parts(self, num_ranks: int) -> list[torch.Tensor]:
        torch.manual_seed(self.rows)
        shape = (self.rows, self.width)
        return [(torch.randn(shape) * 10.0 ** (i % 3)).to(self.part_dtype) for i in range(num_ranks)]

    def bias(self) -> torch.Tensor | None:
        return torch.arange(self.width).to(self.dtype) if self.has_bias else None

    def __call__(self, rank: Worker) -> tuple[torch.Tensor, bool]:
        group = group_of(rank)
        out = torch.full((self.rows, self.width), float("nan"), dtype=self.dtype)
        with patch.object(group, "_sum_slices", wraps=group._sum_slices) as sum_slices:
            group.sum_into(out, self.parts(group.size)[group.rank], self.bias())
        return out, sum_slices.called


def kind_of_group(worker: Worker) -> type:
    assert worker.loaded is not None
    return type(worker.loaded.placement.mesh.group)


@contextmanager
def without_shared_memory(parallel: ParallelWorker) -> Iterator[None]:
    parallel.ask(ShareMemory(False))
    try:
        yield
    finally:
        parallel.ask(ShareMemory(True))


# Of sums over gloo.
MIN_SAVED_BYTES = 1 << 20


@contextmanager
def slices_from(parallel: ParallelWorker, min_saved_bytes: int) -> Iterator[None]:
    parallel.ask(SliceFrom(min_saved_bytes))
    try:
        yield
    finally:
        parallel.ask(SliceFrom(MIN_SAVED_BYTES))


def run(parallel: ParallelWorker, jobs: list[Job], tells_tokens: bool) -> list[Job]:
    parallel.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    done = [job.again() for job in jobs]
    driver = Driver(
        parallel,
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
        with slices_from(over_gloo, 0):
            assert run(over_gloo, jobs, num_stages > 1) == expected


@pytest.fixture
def four(ranks: RankPool, tmp_path: Path) -> Iterator[ParallelWorker]:
    path = write_tiny_llama(tmp_path)
    config = WorkerConfig(model=str(path), tensor_parallel_size=4, num_threads=1)
    with without_shared_memory(ranks.load(config)):
        yield ranks.load(config)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "part_dtype"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)],
)
# With slices of half a row, of odd lengths, and what cannot be cut into four.
@pytest.mark.parametrize(
    ("rows", "width", "can_be_cut"), [(2, 64, True), (1, 12, True), (20, 33, True), (3, 7, False)]
)
def test_sums_by_slices_have_the_bits_of_the_order_of_the_ranks(
    rows: int,
    width: int,
    can_be_cut: bool,
    has_bias: bool,
    dtype: torch.dtype,
    part_dtype: torch.dtype,
    four: ParallelWorker,
) -> None:
    command = Sum(rows, width, dtype, part_dtype, has_bias)
    expected = sum_in_order(command.parts(4), command.bias(), dtype)
    for min_saved_bytes, is_sliced in ((0, can_be_cut), (MIN_SAVED_BYTES, False)):
        with slices_from(four, min_saved_bytes):
            answers = four.ask(command)
        assert [by_slices for _, by_slices in answers] == [is_sliced] * 4
        for out, _ in answers:
            assert_same_bits(out, expected)


@pytest.mark.parametrize(("rows", "is_sliced"), [(139, False), (140, True)])
def test_only_large_sums_go_by_slices(rows: int, is_sliced: bool, four: ParallelWorker) -> None:
    # 7.5 bytes of each element are saved: (4 - 1) * 4 - (4 - 1) / 4 * (4 + 2).
    command = Sum(rows, 1000, torch.bfloat16, torch.float32, has_bias=False)
    assert [by_slices for _, by_slices in four.ask(command)] == [is_sliced] * 4


def wait_alone(rank: Worker) -> str:
    """What the first rank raises when it begins an exchange that the others do not take part in."""
    group = group_of(rank)
    if group.rank != 0:
        return ""
    with pytest.raises(RankLostError) as caught:
        group.sum_into(torch.zeros(4), torch.zeros(4))
    return str(caught.value)


def test_a_rank_waits_for_the_others_as_long_as_the_engine_says(
    ranks: RankPool, checkpoints: CheckpointCache
) -> None:
    config = WorkerConfig(
        model=str(checkpoints.get(dataclasses.replace(CASES["llama-biases"], dtype=torch.bfloat16))),
        tensor_parallel_size=2,
        num_threads=1,
        exchange_timeout_s=0.1,
    )
    waiting = ranks.load(config)
    with without_shared_memory(waiting):
        parallel = ranks.load(config)
        parallel.init_kv_cache(NUM_BLOCKS)
        assert "an exchange with the other ranks failed" in parallel.ask(wait_alone)[0]

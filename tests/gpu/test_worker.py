"""A whole worker on a GPU: the tokens of the CPU's worker, whatever the requests ask for."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, NUM_HOST_BLOCKS, start_on, start_worker
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Driver, Job, num_window_groups_of
from tests.worker.runner.test_batch_invariance import random_jobs

pytestmark = pytest.mark.slow

DEMO_MODEL = Path(__file__).parents[2] / "engine_core" / "demo_model"


@pytest.fixture(scope="module")
def cpu_worker(checkpoint: Path) -> tuple[Worker, WorkerConfig]:
    return start_on(CpuDevice(), checkpoint)


@pytest.mark.parametrize("backend", ["cuda", "torch"])
def test_tokens_are_those_of_the_cpu(
    gpu: Gpu, backend: str, checkpoint: Path, cpu_worker: tuple[Worker, WorkerConfig]
) -> None:
    worker, config = start_worker(gpu, checkpoint, attention_backend=backend)
    ours = random_jobs(random.Random(5))
    theirs = [job.again() for job in ours]
    for (runs, settings), jobs in (((worker, config), ours), (cpu_worker, theirs)):
        # Preempted jobs come back from the CPU offload tier.
        driver = Driver(runs, settings, NUM_BLOCKS, random.Random(9), NUM_HOST_BLOCKS)
        driver.run(jobs)
        assert driver.mixed_steps > 0
        assert driver.host.num_loads > 0
    assert [job.tokens for job in ours] == [job.tokens for job in theirs]
    assert [sorted(job.logprobs) for job in ours] == [sorted(job.logprobs) for job in theirs]
    assert {job.error for job in ours} == {None}


def test_the_demo_model_says_what_it_says_on_a_cpu(gpu: Gpu) -> None:
    settings = {"dtype": "float32", "max_model_len": 256}
    ours, config = start_worker(gpu, DEMO_MODEL, **settings)
    theirs = Worker(msgspec.structs.replace(config, attention_backend="auto"), CpuDevice())
    theirs.load()
    theirs.init_kv_cache(NUM_BLOCKS)
    rng, count = random.Random(1), 4 if gpu.is_emulated else 40
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job([rng.randrange(256) for _ in range(length)], greedy, count) for length in (3, 9, 30)]
    expected = [job.again() for job in jobs]
    Driver(ours, config, NUM_BLOCKS, random.Random(1)).run(jobs)
    Driver(theirs, config, NUM_BLOCKS).run(expected)
    assert [job.tokens for job in jobs] == [job.tokens for job in expected]


def test_a_worker_that_gave_up_its_cache_has_it_again(gpu: Gpu, checkpoint: Path) -> None:
    worker, config = start_worker(gpu, checkpoint)
    jobs = random_jobs(random.Random(4))[:4]
    again = [job.again() for job in jobs]
    Driver(worker, config, NUM_BLOCKS, random.Random(4)).run(jobs)
    # Of a cache so small torch's allocator may keep the piece that it was cut from.
    before = 0 if gpu.is_emulated else torch.cuda.memory_allocated()
    worker.release_kv_cache()
    assert gpu.is_emulated or torch.cuda.memory_allocated() < before
    worker.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    Driver(worker, config, NUM_BLOCKS, random.Random(4)).run(again)
    assert [job.tokens for job in jobs] == [job.tokens for job in again]


def test_a_row_that_is_no_number_fails_alone(gpu: Gpu, tmp_path: Path) -> None:
    checkpoint = write_tiny_llama(tmp_path / "poisoned", poisoned_token=7)
    worker, config = start_worker(gpu, checkpoint)
    jobs = random_jobs(random.Random(2))[:4]
    jobs[1].prompt[-1] = 7
    for i in (0, 2, 3):
        jobs[i].prompt = [token for token in jobs[i].prompt if token != 7] or [1]
    Driver(worker, config, NUM_BLOCKS).run(jobs)
    assert jobs[1].error is not None
    assert jobs[1].error.code == "numerical_error"
    # Whoever draws the poisoned token fails with it, as on a CPU.
    assert all(job.error is None or 7 in job.tokens for job in (jobs[0], jobs[2], jobs[3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_runs_in_16_bits(gpu: Gpu, dtype: torch.dtype, tmp_path: Path) -> None:
    worker, config = start_worker(gpu, write_tiny_llama(tmp_path / "half", dtype=dtype))
    jobs = random_jobs(random.Random(3))[:6]
    Driver(worker, config, NUM_BLOCKS, random.Random(3)).run(jobs)
    assert all(job.error is None and len(job.tokens) == job.num_outputs for job in jobs)


@pytest.mark.parametrize(
    "architecture", ["qwen2moe", "granitemoeshared", "deepseekv2", "deepseekv3", "gptoss"]
)
def test_experts_and_latents_give_the_tokens_of_the_cpu(
    gpu: Gpu, architecture: str, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(CheckpointSpec(architecture))
    ours, theirs = start_worker(gpu, path), start_on(CpuDevice(), path)
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job(list(range(3, 3 + length)), greedy, 4) for length in (1, 9, 30)]
    expected = [job.again() for job in jobs]
    for (worker, config), runs in ((ours, jobs), (theirs, expected)):
        groups = num_window_groups_of(worker)
        Driver(worker, config, NUM_BLOCKS, random.Random(1), num_window_groups=groups).run(runs)
    assert [job.tokens for job in jobs] == [job.tokens for job in expected]


def test_latents_run_in_16_bits(gpu: Gpu, checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CheckpointSpec("deepseekv3"))
    worker, config = start_worker(gpu, path, dtype="bfloat16")
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job(list(range(3, 3 + length)), greedy, 3) for length in (1, 9, 30)]
    Driver(worker, config, NUM_BLOCKS, random.Random(1)).run(jobs)
    assert all(job.error is None and len(job.tokens) == 3 for job in jobs)

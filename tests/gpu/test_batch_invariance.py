"""With --batch-invariant a request's tokens and logprobs are those of a run alone, bit by bit."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitserve.worker.config import WorkerConfig
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.invariant import ROW_TILE, InvariantLatentOps, InvariantOps, invariant_ops
from splitserve.worker.worker import Worker
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, device_of
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.driver import Driver
from tests.worker.runner.test_batch_invariance import random_jobs, run_alone

pytestmark = pytest.mark.slow


@pytest.fixture
def invariant(gpu: Gpu) -> InvariantOps:
    if not gpu.is_emulated:
        return invariant_ops()
    ops = InvariantOps.__new__(InvariantOps)
    # The same library; loading it anew would export its functions a second time.
    ops.__dict__.update(gpu.ops.__dict__)
    latents = InvariantLatentOps.__new__(InvariantLatentOps)
    latents.__dict__.update(gpu.ops.latents.__dict__)
    ops.latents = latents
    return ops


@pytest.mark.parametrize("rows", [1, 3, ROW_TILE - 1, ROW_TILE, ROW_TILE + 1, 300])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_of_a_product_have_the_bits_of_one_alone(
    gpu: Gpu, invariant: InvariantOps, rows: int, with_bias: bool
) -> None:
    weight, bias = DenseWeight.of(gpu.randn(96, 64)), gpu.randn(96) if with_bias else None
    x = gpu.randn(rows, 64)
    out = gpu.empty_like(gpu.randn(rows, 96))
    invariant.linear(out, x, weight, bias)
    exact = x.double() @ weight.data.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-4)
    for i in {0, rows // 2, rows - 1}:
        alone = gpu.empty_like(out[:1])
        invariant.linear(alone, x[i : i + 1].clone(), weight, bias)
        assert_same_bits(out[i : i + 1], alone)


@pytest.mark.parametrize("seed", [0, 1])
def test_requests_in_any_company_equal_themselves_alone(
    gpu: Gpu, invariant: InvariantOps, seed: int, tmp_path: Path
) -> None:
    config = WorkerConfig(
        model=str(write_tiny_llama(tmp_path / "tiny-llama")),
        num_threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        block_size=4,
        batch_invariant=True,
    )
    worker = Worker(config, device_of(replace(gpu, ops=invariant)))
    worker.load()
    worker.init_kv_cache(NUM_BLOCKS)
    rng = random.Random(seed)
    jobs = random_jobs(rng)
    driver = Driver(worker, config, NUM_BLOCKS, rng)
    driver.run(jobs)
    assert driver.mixed_steps > 0
    for job in jobs:
        assert job == run_alone(worker, config, job)

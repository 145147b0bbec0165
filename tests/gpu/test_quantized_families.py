"""Encoders, and models with latents and experts, with quantized weights on a GPU, as on the CPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.device.cpu import CpuDevice
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.embeddings import cosines
from tests.encoders import make_encoder
from tests.gpu.conftest import Gpu
from tests.gpu.test_pooling_worker import vectors
from tests.gpu.whole_worker import NUM_BLOCKS, start_on, start_worker
from tests.worker.runner.driver import Driver, Job

pytestmark = pytest.mark.slow


def test_quantized_encoders_come_close_to_the_cpu(gpu: Gpu, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", settings={"initializer_range": 0.1}, dtype=torch.bfloat16)
    settings = {"dtype": "bfloat16", "quantization": "int8", "max_num_batched_tokens": 128}
    workers = start_worker(gpu, folder, **settings)[0], start_on(CpuDevice(), folder, **settings)[0]
    ours, theirs = (vectors(worker, 128) for worker in workers)
    assert cosines(ours, theirs).min() > 0.999


def test_quantized_latents_and_experts_run(gpu: Gpu, checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CheckpointSpec("deepseekv3"))
    worker, config = start_worker(gpu, path, dtype="bfloat16", quantization="int8")
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job(list(range(3, 3 + length)), greedy, 3) for length in (1, 9)]
    Driver(worker, config, NUM_BLOCKS, random.Random(1)).run(jobs)
    assert all(job.error is None and len(job.tokens) == 3 for job in jobs)

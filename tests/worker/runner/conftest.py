"""Workers over tiny checkpoints, loaded once per dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import write_tiny_llama

NUM_BLOCKS = 96
StartWorker = Callable[[Path], tuple[Worker, WorkerConfig]]


def start_worker(checkpoint: Path, kv_cache_dtype: str = "auto") -> tuple[Worker, WorkerConfig]:
    """A worker with few rows and small blocks, so that short sequences cross many borders."""
    config = WorkerConfig(
        model=str(checkpoint),
        num_threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        block_size=4,
        kv_cache_dtype=kv_cache_dtype,
    )
    worker = Worker(config)
    worker.load(lambda loaded_bytes, total_bytes: None)
    worker.init_kv_cache(NUM_BLOCKS)
    return worker, config


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_worker(tiny_llama: Path) -> tuple[Worker, WorkerConfig]:
    return start_worker(tiny_llama)


@pytest.fixture(scope="session")
def tiny_bf16_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-bf16"), dtype=torch.bfloat16)


@pytest.fixture(scope="session")
def tiny_bf16_worker(tiny_bf16_llama: Path) -> tuple[Worker, WorkerConfig]:
    return start_worker(tiny_bf16_llama)


@pytest.fixture(scope="session")
def tiny_int8_cache_worker(tiny_bf16_llama: Path) -> tuple[Worker, WorkerConfig]:
    return start_worker(tiny_bf16_llama, "int8")


@pytest.fixture(scope="session")
def tiny_fp8_cache_worker(tiny_bf16_llama: Path) -> tuple[Worker, WorkerConfig]:
    return start_worker(tiny_bf16_llama, "fp8")

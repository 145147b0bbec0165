"""A worker on a GPU, or on the emulation of one: the same code but for streams, graphs and pinned memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.worker import Worker
from tests.gpu.conftest import EmulatedOps, Gpu
from tests.gpu.emulated.build import build
from tests.worker.runner.driver import num_window_groups_of

NUM_BLOCKS = 96
NUM_HOST_BLOCKS = 24


def device_of(gpu: Gpu) -> CudaDevice:
    return CudaDevice(gpu.ops, torch.device("cpu") if gpu.is_emulated else torch.device("cuda", 0))


def emulated_device() -> CudaDevice:
    """For the processes of several ranks, which each load the library; a test has built it before."""
    return CudaDevice(EmulatedOps(tvm_ffi.load_module(str(build()))), torch.device("cpu"))


def start_worker(gpu: Gpu, checkpoint: Path, **settings: Any) -> tuple[Worker, WorkerConfig]:
    """A worker on the GPU."""
    return start_on(device_of(gpu), checkpoint, **settings)


def start_on(device: Device, checkpoint: Path, **settings: Any) -> tuple[Worker, WorkerConfig]:
    """A worker with few rows and small blocks, so that short sequences cross many borders."""
    config = WorkerConfig(
        model=str(checkpoint),
        **{"num_threads": 1, "max_num_seqs": 6, "max_num_batched_tokens": 64, "block_size": 4, **settings},
    )
    worker = Worker(config, device)
    ready = worker.load()
    assert ready.available_bytes >= ready.block_bytes
    assert worker.loaded is not None
    # An encoder has no KV cache.
    num_groups = (1 + num_window_groups_of(worker)) * (worker.loaded.model.num_layers > 0)
    worker.init_kv_cache(NUM_BLOCKS * num_groups, NUM_HOST_BLOCKS * (num_groups > 0))
    return worker, config

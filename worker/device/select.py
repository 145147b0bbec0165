"""Which device a worker computes on, given what was asked for and what the machine has."""

from __future__ import annotations

import logging

import torch

from engine_core.errors import ConfigError
from worker.cuda_ops import cuda_ops
from worker.device.base import Device
from worker.device.cpu import CpuDevice
from worker.device.cuda import CudaDevice

logger = logging.getLogger(__name__)

_MIN_CAPABILITY = (8, 0)


def open_device(requested: str, rank: int = 0, memory_utilization: float = 0.9) -> Device:
    """Return the device of a rank; "auto" is a GPU where one can be used.

    Args:
        requested: "auto", "cpu" or "cuda".
        rank: of the worker; it takes the GPU of that index.
        memory_utilization: share of a GPU's memory the worker may take.

    Raises:
        ConfigError: a GPU was asked for and cannot be used; says why.
    """
    if requested == "cpu":
        return CpuDevice()
    reason = why_not_cuda(rank)
    if not reason:
        return CudaDevice(cuda_ops(), torch.device("cuda", rank), memory_utilization)
    if requested == "cuda":
        raise ConfigError(f"--device cuda cannot be used: {reason}")
    if torch.cuda.is_available():
        logger.warning("device_unused name=cuda reason=%s", reason)
    return CpuDevice()


def why_not_cuda(rank: int) -> str:
    """Return why a rank cannot compute on a GPU, "" if it can."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU or no driver"
    if rank >= torch.cuda.device_count():
        return f"rank {rank} needs a GPU of its own, and there are {torch.cuda.device_count()}"
    if torch.cuda.get_device_capability(rank) < _MIN_CAPABILITY:
        return "the kernels need compute capability 8.0"
    try:
        cuda_ops()
    except ImportError as error:
        return str(error)
    return ""

"""Which device a worker computes on, given the setting and the machine."""

from __future__ import annotations

import logging

import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.ops.cuda import cuda_ops
from splitserve.worker.ops.invariant import invariant_ops

logger = logging.getLogger(__name__)

_MIN_CAPABILITY = (8, 0)


def open_device(
    requested: str,
    rank: int = 0,
    memory_utilization: float = 0.9,
    num_local_ranks: int = 1,
    batch_invariant: bool = False,
) -> Device:
    """Return the device of a rank; "auto" picks a GPU if every rank on this machine can have one.

    Args:
        requested: "auto", "cpu" or "cuda".
        rank: of the worker, which takes the GPU at its index among this machine's ranks.
        memory_utilization: share of a GPU's memory the worker may use.
        num_local_ranks: ranks on this machine, which must all reach the same answer.
        batch_invariant: results must be bitwise independent of the batch; on a CPU they always are.

    Raises:
        ConfigError: a GPU was requested and cannot be used; says why.
    """
    if requested == "cpu":
        return CpuDevice(num_local_ranks)
    reason = why_not_cuda(num_local_ranks)
    if not reason:
        ops = invariant_ops() if batch_invariant else cuda_ops()
        return CudaDevice(ops, torch.device("cuda", rank % num_local_ranks), memory_utilization)
    if requested == "cuda":
        raise ConfigError(f"--device cuda cannot be used: {reason}")
    if torch.cuda.is_available():
        log_event(logger, logging.WARNING, "device_unused", name="cuda", reason=reason)
    return CpuDevice(num_local_ranks)


def why_not_cuda(num_local_ranks: int = 1) -> str:
    """Return why the ranks on this machine cannot use GPUs, "" if they can."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU or no driver"
    if num_local_ranks > torch.cuda.device_count():
        return f"{num_local_ranks} ranks need a GPU each, and there are {torch.cuda.device_count()}"
    if any(torch.cuda.get_device_capability(i) < _MIN_CAPABILITY for i in range(num_local_ranks)):
        return "the kernels need compute capability 8.0"
    try:
        cuda_ops()
    except ImportError as error:
        return str(error)
    return ""

"""Which device a worker computes on, given what was asked for and what the machine has."""

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
    """Return the device of a rank; "auto" is a GPU where every rank of this machine can use one.

    Args:
        requested: "auto", "cpu" or "cuda".
        rank: of the worker; it takes the GPU of its index among this machine's ranks.
        memory_utilization: share of a GPU's memory the worker may take.
        num_local_ranks: ranks of this machine, which all have to come to the same answer.
        batch_invariant: a row's bits do not depend on its batch; on a CPU they never do.

    Raises:
        ConfigError: a GPU was asked for and cannot be used; says why.
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
    """Return why this machine's ranks cannot compute on GPUs, "" if they can."""
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

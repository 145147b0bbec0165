"""Which attention backend serves a model, given the setting, the device and the installed packages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.settings.worker_settings import ATTENTION_BACKENDS
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.cuda import CudaAttention
from splitserve.worker.attention.flash import FlashAttention
from splitserve.worker.attention.flash_editions import find_edition
from splitserve.worker.attention.needs import AttentionNeeds
from splitserve.worker.attention.reference import TorchAttention
from splitserve.worker.device.base import Device
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.dtypes import dtype_name

logger = logging.getLogger(__name__)


_NO_WHOLE = "it reads a KV cache, and encoders have none"
_NO_CODES = "a KV cache of codes is read by the custom kernels only"
# Codes of a head are read by eights from where they begin, and scales of two bytes each lie behind them.
_INT8_BLOCK = 4
_NO_LATENTS = "latent attention is computed by the backends cpu and cuda only"


class Choice(NamedTuple):
    """A backend, or the reason it cannot be used; `why` explains either."""

    backend: AttentionBackend | None
    why: str


def choose_backend(requested: str, device: Device, needs: AttentionNeeds) -> AttentionBackend:
    """Return the requested backend, or for "auto" the first usable one.

    The custom backends come first. They support every dtype, head size and block size, given enough shared
    memory on a GPU; their results are bitwise independent of the batch, they compile nothing at the first
    call, and they are tested, as the flash-attn packages on a GPU are not yet. The choice is logged.

    Args:
        requested: one of ATTENTION_BACKENDS.
        device: to compute on.
        needs: what the model requires.

    Raises:
        ConfigError: the backend cannot be used; says why.
    """
    names = [name for name in ATTENTION_BACKENDS if name != "auto"] if requested == "auto" else [requested]
    passed: list[str] = []
    for name in names:
        backend, why = _CHOICES[name](device, needs)
        if backend is not None:
            rejected = ", ".join(passed) or None
            log_event(
                logger,
                logging.INFO,
                "attention_backend",
                name=name,
                reason=why,
                needs=str(needs),
                rejected=rejected,
            )
            return backend
        passed.append(f"{name}: {why}")
    raise ConfigError(f"--attention-backend {requested} cannot be used for {needs}: {'; '.join(passed)}")


def _cpu(device: Device, needs: AttentionNeeds) -> Choice:
    if device.name != "cpu":
        return Choice(None, f"the device is {device.name}")
    return Choice(CpuAttention(), "custom kernels for this device")


def _cuda(device: Device, needs: AttentionNeeds) -> Choice:
    if not isinstance(device, CudaDevice):
        return Choice(None, f"the device is {device.name}")
    if needs.codes and needs.latent:
        return Choice(None, "codes of latents are read on CPUs only")
    if needs.codes == "int8" and needs.block_size % _INT8_BLOCK:
        return Choice(None, f"a KV cache of int8 needs blocks of a multiple of {_INT8_BLOCK} tokens")
    ops = device.cuda_ops
    bytes_taken = ops.latent_shared_bytes() if needs.latent else ops.attention_shared_bytes(needs.head_dim)
    taken = bytes_taken >> 10
    limit = ops.shared_bytes_limit(device.torch_device.index or 0) >> 10
    # The float32 kernel needs little shared memory.
    if needs.dtype != torch.float32 and taken >= limit:
        return Choice(None, f"a thread block takes {taken} KiB of shared memory, this GPU has {limit}")
    return Choice(CudaAttention(device.cuda_ops, device.torch_device), "custom kernels for this device")


def _flash_attn(device: Device, needs: AttentionNeeds) -> Choice:
    if not isinstance(device, CudaDevice):
        return Choice(None, f"the device is {device.name}")
    if needs.codes:
        return Choice(None, _NO_CODES)
    if needs.whole:
        return Choice(None, _NO_WHOLE)
    if needs.latent:
        return Choice(None, _NO_LATENTS)
    if needs.batch_invariant:
        return Choice(None, "its bits may depend on the batch")
    if needs.softcap:
        return Choice(None, "its soft caps are not used, as no GPU has tested them")
    if needs.sinks:
        return Choice(None, "its sinks are not used")
    if needs.dtype not in (torch.bfloat16, torch.float16):
        return Choice(None, f"it has no {dtype_name(needs.dtype)}")
    found = find_edition(device.capability[0], needs, device.torch_device)
    if found.attend is None:
        return Choice(None, found.reason)
    return Choice(FlashAttention(device.cuda_ops, device.torch_device, found.attend), found.name)


def _torch(device: Device, needs: AttentionNeeds) -> Choice:
    if needs.codes:
        return Choice(None, _NO_CODES)
    if needs.whole:
        return Choice(None, _NO_WHOLE)
    if needs.latent:
        return Choice(None, _NO_LATENTS)
    if needs.batch_invariant:
        return Choice(None, "its bits may depend on how a prompt is cut")
    return Choice(TorchAttention(device.torch_device), "the reference, slow")


_CHOICES: dict[str, Callable[[Device, AttentionNeeds], Choice]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "flash_attn": _flash_attn,
    "torch": _torch,
}

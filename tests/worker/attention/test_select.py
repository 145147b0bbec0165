"""--attention-backend: what auto takes, what is refused and why, and that the log says so."""

from __future__ import annotations

import logging
import sys
from typing import cast

import pytest
import torch

from engine_core.errors import ConfigError
from worker.attention.cpu import CpuAttention
from worker.attention.cuda import CudaAttention
from worker.attention.reference import TorchAttention
from worker.attention.select import AttentionNeeds, choose_backend
from worker.cuda_ops import CudaOps
from worker.device.base import Device
from worker.device.cpu import CpuDevice
from worker.device.cuda import CudaDevice


class SharedMemory:
    """Of the kernels, what a choice asks; a GPU of compute capability 8.9."""

    def attention_shared_bytes(self, head_dim: int) -> int:
        return (60 if head_dim <= 64 else 112) << 10

    def shared_bytes_limit(self, device: int) -> int:
        assert device == 0
        return 99 << 10


NEEDS = AttentionNeeds(torch.bfloat16, 16, 64)
WIDE = NEEDS._replace(head_dim=128)
CPU = CpuDevice()
CUDA = CudaDevice(cast("CudaOps", SharedMemory()), torch.device("cpu"))


@pytest.mark.parametrize(("device", "kind"), [(CPU, CpuAttention), (CUDA, CudaAttention)])
def test_auto_takes_the_devices_own_kernels(
    device: Device, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(choose_backend("auto", device, NEEDS), kind)
    (line,) = caplog.messages
    assert line.startswith(f"attention_backend name={device.name} reason=our kernels for this device")


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_torch_can_be_asked_for_anywhere(device: Device) -> None:
    assert isinstance(choose_backend("torch", device, NEEDS), TorchAttention)


@pytest.mark.parametrize(
    ("requested", "device", "needs", "reason"),
    [
        ("cuda", CPU, NEEDS, "cuda: the device is cpu"),
        ("cpu", CUDA, NEEDS, "cpu: the device is cuda"),
        ("flash_attn", CPU, NEEDS, "flash_attn: the device is cpu"),
        ("flash_attn", CUDA, NEEDS._replace(dtype=torch.float32), "flash_attn: it has no float32"),
        ("flash_attn", CUDA, NEEDS, "flash_attn: FlashAttention 3: "),
        ("flash_attn", CUDA, NEEDS._replace(batch_invariant=True), "flash_attn: its bits may depend"),
        ("cuda", CUDA, WIDE, "cuda: heads of 128 take 112 KiB of shared memory, this GPU has 99"),
        ("torch", CUDA, NEEDS._replace(batch_invariant=True), "torch: its bits may depend"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    requested: str, device: Device, needs: AttentionNeeds, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"--attention-backend {requested} cannot be used: {reason}"):
        choose_backend(requested, device, needs)


def test_auto_leaves_kernels_that_find_no_shared_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(choose_backend("auto", CUDA, WIDE), TorchAttention)
    assert "not cpu: the device is cuda, cuda: heads of 128 take" in caplog.messages[0]
    # In float32 a warp has a row, and only that of its query lies in shared memory.
    assert isinstance(choose_backend("auto", CUDA, WIDE._replace(dtype=torch.float32)), CudaAttention)

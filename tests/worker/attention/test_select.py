"""--attention-backend: what auto takes, what is refused and why, and that the log says so."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.cuda import CudaAttention
from splitserve.worker.attention.flash import FlashAttention
from splitserve.worker.attention.needs import AttentionNeeds
from splitserve.worker.attention.reference import TorchAttention
from splitserve.worker.attention.select import choose_backend
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.ops.cuda import CudaOps
from tests.worker.attention.flash_modules import Flash3


class SharedMemory:
    """Of the kernels, what a choice asks."""

    def __init__(self, limit_kib: int) -> None:
        self._limit = limit_kib << 10

    def attention_shared_bytes(self, head_dim: int) -> int:
        return (60 if head_dim <= 64 else 112) << 10

    def latent_shared_bytes(self) -> int:
        return 107 << 10

    def shared_bytes_limit(self, device: int) -> int:
        assert device == 0
        return self._limit


NEEDS = AttentionNeeds(torch.bfloat16, 16, 128, 32, 8)
CPU = CpuDevice()
CUDA = CudaDevice(cast("CudaOps", SharedMemory(227)), torch.device("cpu"))
# Of compute capability 8.9.
SMALL_CUDA = CudaDevice(cast("CudaOps", SharedMemory(99)), torch.device("cpu"))


@pytest.mark.parametrize(("device", "kind"), [(CPU, CpuAttention), (CUDA, CudaAttention)])
def test_auto_takes_the_devices_own_kernels(
    device: Device, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(choose_backend("auto", device, NEEDS), kind)
    (line,) = caplog.messages
    reason, needs = "custom kernels for this device", "bfloat16, heads of 128, blocks of 16"
    assert line.startswith(f'attention_backend name={device.name} reason="{reason}" needs="{needs}"')


@pytest.mark.parametrize("change", [{"whole": True}, {"latent": True, "head_dim": 576}], ids=str)
def test_encoders_and_latents_have_the_devices_own_kernels(change: dict[str, Any]) -> None:
    needs = NEEDS._replace(**change)
    assert isinstance(choose_backend("auto", CPU, needs), CpuAttention)
    assert isinstance(choose_backend("auto", CUDA, needs), CudaAttention)
    reason = "it reads a KV cache" if needs.whole else "latent attention is computed by"
    for other in ("flash_attn", "torch"):
        with pytest.raises(ConfigError, match=f"{other}: {reason}"):
            choose_backend(other, CUDA, needs)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_torch_can_be_asked_for_anywhere(device: Device) -> None:
    assert isinstance(choose_backend("torch", device, NEEDS), TorchAttention)


@pytest.mark.parametrize(
    ("requested", "device", "needs", "reason"),
    [
        ("cuda", CPU, NEEDS, "cuda: the device is cpu"),
        ("cpu", CUDA, NEEDS, "cpu: the device is cuda"),
        ("cuda", SMALL_CUDA, NEEDS, "cuda: a thread block takes 112 KiB of shared memory, this GPU has 99"),
        (
            "cuda",
            CUDA,
            NEEDS._replace(latent=True, codes="fp8"),
            "cuda: codes of latents are read on CPUs only",
        ),
        ("cuda", SMALL_CUDA, NEEDS._replace(latent=True), "cuda: a thread block takes 107 KiB of shared"),
        ("flash_attn", CPU, NEEDS, "flash_attn: the device is cpu"),
        ("flash_attn", CUDA, NEEDS._replace(dtype=torch.float32), "flash_attn: it has no float32"),
        ("flash_attn", CUDA, NEEDS, "flash_attn: FlashAttention 3: "),
        (
            "flash_attn",
            CUDA,
            NEEDS._replace(head_dim=72),
            ".* FlashAttention 4 has pages for heads of a multiple of 16",
        ),
        ("flash_attn", CUDA, NEEDS._replace(batch_invariant=True), "flash_attn: its bits may depend"),
        ("flash_attn", CUDA, NEEDS._replace(sinks=True), "flash_attn: its sinks are not used"),
        ("flash_attn", CUDA, NEEDS._replace(softcap=True), "flash_attn: its soft caps are not used"),
        ("torch", CUDA, NEEDS._replace(batch_invariant=True), "torch: its bits may depend"),
        *(
            (name, CUDA, NEEDS._replace(codes="int8"), f"{name}: a KV cache of codes is read by")
            for name in ("flash_attn", "torch")
        ),
        (
            "cuda",
            CUDA,
            NEEDS._replace(codes="int8", block_size=6),
            "cuda: a KV cache of int8 needs blocks of a multiple of 4 tokens",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    requested: str, device: Device, needs: AttentionNeeds, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)
    message = f"--attention-backend {requested} cannot be used for {needs}: {reason}"
    with pytest.raises(ConfigError, match=message):
        choose_backend(requested, device, needs)


def test_flash_attn_serves_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    module = ModuleType("flash_attn_interface")
    vars(module)["flash_attn_with_kvcache"] = Flash3.flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    assert isinstance(choose_backend("flash_attn", CUDA, NEEDS), FlashAttention)
    (line,) = caplog.messages
    assert line == (
        'attention_backend name=flash_attn reason="FlashAttention 3" '
        'needs="bfloat16, heads of 128, blocks of 16"'
    )


def test_auto_leaves_our_kernels_where_they_find_no_shared_memory() -> None:
    assert isinstance(choose_backend("auto", SMALL_CUDA, NEEDS), TorchAttention)
    assert isinstance(choose_backend("auto", SMALL_CUDA, NEEDS._replace(head_dim=64)), CudaAttention)
    # In float32 a warp has a row, and only its query lies in shared memory.
    assert isinstance(choose_backend("auto", SMALL_CUDA, NEEDS._replace(dtype=torch.float32)), CudaAttention)

"""--device: auto falls back to the CPU, an explicit GPU that cannot be used is refused with the reason."""

from __future__ import annotations

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.device import select
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.select import open_device


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Torch as it is on a machine with one H100, as far as the choice looks."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority=0: None)
    monkeypatch.setattr(select, "cuda_ops", lambda: "any")
    monkeypatch.setattr(select, "invariant_ops", lambda: "invariant")
    return monkeypatch


def no_library() -> None:
    raise ImportError("libsplitserve_cuda.so is missing")


@pytest.mark.usefixtures("gpu_machine")
@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_gpu_is_taken_where_there_is_one(requested: str) -> None:
    device = open_device(requested)
    assert isinstance(device, CudaDevice)
    assert device.torch_device == torch.device("cuda", 0)


@pytest.mark.usefixtures("gpu_machine")
@pytest.mark.parametrize(("batch_invariant", "ops"), [(False, "any"), (True, "invariant")])
def test_its_operations_are_those_asked_for(batch_invariant: bool, ops: str) -> None:
    assert open_device("cuda", batch_invariant=batch_invariant).ops == ops


@pytest.mark.usefixtures("gpu_machine")
def test_the_cpu_can_be_asked_for() -> None:
    assert isinstance(open_device("cpu"), CpuDevice)


@pytest.mark.parametrize(
    ("where", "name", "value", "rank", "reason"),
    [
        (torch.version, "cuda", None, 0, "this torch was built without CUDA"),
        (torch.cuda, "is_available", lambda: False, 0, "torch finds no GPU or no driver"),
        (torch.cuda, "device_count", lambda: 1, 1, "2 ranks need a GPU each, and there are 1"),
        (torch.cuda, "get_device_capability", lambda index: (7, 5), 0, "compute capability 8.0"),
        (select, "cuda_ops", no_library, 0, "libsplitserve_cuda.so is missing"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(
    gpu_machine: pytest.MonkeyPatch, where: object, name: str, value: object, rank: int, reason: str
) -> None:
    gpu_machine.setattr(where, name, value)
    with pytest.raises(ConfigError, match=f"--device cuda cannot be used: .*{reason}"):
        open_device("cuda", rank, num_local_ranks=rank + 1)
    for any_rank in range(rank + 1):
        chosen = open_device("auto", any_rank, num_local_ranks=rank + 1)
        assert isinstance(chosen, CpuDevice), "one rank on a GPU and one on the CPU could not work together"

"""Which dtype a model runs in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.dtypes import check_quantization, resolve_dtype
from splitserve.worker.ops.codes.operations import CodedOps
from splitserve.worker.ops.cuda import CudaOps
from tests.engine_core.checkpoint.test_model_config import read


@pytest.mark.parametrize(
    ("requested", "stored", "expected"),
    [
        ("auto", "float32", torch.float32),
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float16", torch.bfloat16),
        ("auto", "ABSENT", torch.float32),
        ("float32", "bfloat16", torch.float32),
        ("bfloat16", "float32", torch.bfloat16),
    ],
)
def test_the_dtype_is_the_checkpoints_unless_asked_otherwise(
    requested: str, stored: str, expected: torch.dtype, tmp_path: Path
) -> None:
    assert resolve_dtype(requested, read(tmp_path, torch_dtype=stored), CpuDevice()) == expected


@pytest.mark.parametrize("requested", ["float16", "int8"])
def test_a_dtype_that_the_cpu_lacks_is_refused(requested: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dtype"):
        resolve_dtype(requested, read(tmp_path), CpuDevice())


def test_a_gpu_keeps_float16(tmp_path: Path) -> None:
    config = read(tmp_path, torch_dtype="float16")
    device = CudaDevice(cast("CudaOps", None), torch.device("cpu"))
    assert resolve_dtype("auto", config, device) == torch.float16
    for dtype in (torch.float16, torch.bfloat16):
        check_quantization("int8", dtype, device)
    with pytest.raises(ConfigError, match="--quantization int8 needs bfloat16 or float16 activations"):
        check_quantization("int8", torch.float32, device)


def test_a_gpu_without_the_memory_for_products_with_codes_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = SimpleNamespace(shared_bytes_limit=lambda index: 101_376, coded=CodedOps)
    device = CudaDevice(cast("CudaOps", ops), torch.device("cpu"))
    monkeypatch.setattr(device, "_is_real", True)
    with pytest.raises(ConfigError, match="--quantization int4 needs 145 KiB of shared memory"):
        check_quantization("int4", torch.bfloat16, device)
    check_quantization("none", torch.bfloat16, device)

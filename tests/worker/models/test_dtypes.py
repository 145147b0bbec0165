"""Which dtype a model runs in."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.dtypes import check_quantization, resolve_dtype
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
    with pytest.raises(ConfigError, match="--quantization int8 is not supported on cuda"):
        check_quantization("int8", torch.bfloat16, device)

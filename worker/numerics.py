"""What decides the last bit of a logit, besides the weights? Engines of one value compute the same bits."""

from __future__ import annotations

from importlib.metadata import version

import torch

from splitserve.engine_core.process.version import software_version
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.dtypes import dtype_name
from splitserve.worker.kv_cache.cache_dtype import CODE_DTYPES
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.ops.cpu import ops


def numerics(config: WorkerConfig, loaded: LoadedModel) -> str:
    """Name release, device, instruction set, formats, attention backend and split of a loaded model."""
    device, backend, _mesh = loaded.placement
    parts = [
        software_version(),
        _processor(device),
        dtype_name(loaded.dtype),
        loaded.quantization,
        *(f"kv-{name}" for name, dtype in CODE_DTYPES.items() if dtype == loaded.cache_dtype),
        type(backend).__name__,
        f"tp{config.tensor_parallel_size}",
        f"pp{config.pipeline_parallel_size}",
    ]
    if config.splits_experts:
        parts.append("ep")
    if loaded.config.family == "transformers":
        # Modules of these libraries compute a part of it.
        parts += [f"transformers-{version('transformers')}", f"torch-{torch.__version__}"]
    # Results of a CPU never depend on the batch.
    if config.batch_invariant or device.name == "cpu":
        parts.append("batch-invariant")
    return " ".join(part for part in parts if part)


def _processor(device: Device) -> str:
    if device.torch_device.type == "cuda":
        return torch.cuda.get_device_name(device.torch_device).replace(" ", "-")
    # Kernels for a GPU may run emulated.
    return f"{device.name}-{ops.cpu_isa()}"

"""Which dtype a model runs in, given what was asked for and what the checkpoint holds."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine_core.errors import ConfigError
from worker.checkpoint import Checkpoint
from worker.model_config import ModelConfig

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def resolve_dtype(requested: str, config: ModelConfig) -> torch.dtype:
    """Return the dtype of weights, activations and KV cache.

    "auto" is the checkpoint's dtype: what config.json says, or else what its largest tensor has. The CPU kernels
    have no float16, so a float16 checkpoint runs in bfloat16: as small and as fast, with float32's range and 3 bits
    less precision; float32 keeps every bit at twice the memory.

    Args:
        requested: "auto", "float32", "bfloat16" or "float16".
        config: of the checkpoint.

    Raises:
        ConfigError: float16 was asked for.
        ModelLoadError: the checkpoint had to be opened and is damaged.
    """
    if requested == "float16":
        raise ConfigError("--dtype float16 is not supported on a CPU; take bfloat16 or float32")
    if requested != "auto":
        return _DTYPES[requested]
    dtype = _DTYPES.get(config.dtype) or _largest_dtype(config.path)
    if dtype == torch.float16:
        logger.warning("dtype_changed path=%s: float16 runs as bfloat16 on a CPU", config.path)
        return torch.bfloat16
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name used on the wire: "float32", "bfloat16" or "float16"."""
    return str(dtype).removeprefix("torch.")


def _largest_dtype(path: str) -> torch.dtype:
    """Return the dtype of the checkpoint's largest tensor, which no norm kept in float32 can be."""
    with Checkpoint.open(Path(path)) as checkpoint:
        entries = [tensor.entry for tensor in checkpoint if tensor.entry.dtype in _STORED]
    largest = max(entries, key=lambda entry: entry.num_bytes, default=None)
    return torch.float32 if largest is None else _STORED[largest.dtype]

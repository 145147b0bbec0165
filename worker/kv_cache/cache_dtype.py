"""What does the KV cache hold, given the setting, the checkpoint and what the model runs in?

Codes have no scale but 1 (E4M3) or one of their own token and head (int8), see csrc/common. A checkpoint's
scales only tell whether its keys and values are in the range of E4M3 with scale 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.device.dtypes import dtype_name

logger = logging.getLogger(__name__)

CODE_DTYPES = {"fp8": torch.uint8, "int8": torch.int8}
"""By value of --kv-cache-dtype; see BlockShape."""
# The largest number of E4M3, which a scale takes the largest key or value of a calibration to.
_LARGEST = 448.0
# With a smaller scale the largest key or value was below 0.22, and many of the others are below 2^-6, where
# E4M3 with scale 1 has fewer than four bits.
_LEAST_SCALE = 2.0**-11

Range = tuple[float, float] | None
"""The least and the greatest scale of a checkpoint; None if it has none."""


def settle_cache(
    requested: str, config: ModelConfig, dtype: torch.dtype, scales: Callable[[], Range], why_not: str = ""
) -> str:
    """Return what the KV cache is asked to hold: the setting, with "auto" perhaps what the checkpoint says.

    Args:
        requested: one of KV_CACHE_DTYPES.
        config: model config of the checkpoint.
        dtype: the model runs in.
        scales: reads those of the checkpoint.
        why_not: why codes cannot be read; "" if they can.

    Raises:
        ConfigError: fp8 is asked for, and would cut off keys or values.
    """
    quantization = config.quantization
    if quantization is None or requested not in ("auto", "fp8"):
        return requested
    if requested == "fp8":
        problem = _beyond(scales())
        if problem:
            raise ConfigError(f"--kv-cache-dtype fp8: {problem}; take int8 or bfloat16")
        return requested
    if not quantization.cache_codes or config.encoder is not None:
        return requested
    why_not = why_not or _why_not(quantization.cache_codes, config, dtype, scales)
    log_event(
        logger,
        logging.INFO,
        "kv_cache_of_checkpoint",
        path=config.path,
        asks=quantization.cache_codes,
        holds=dtype_name(dtype) if why_not else quantization.cache_codes,
        detail=why_not or "scales in the files have no effect",
    )
    return requested if why_not else quantization.cache_codes


def resolve_cache_dtype(requested: str, config: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the KV cache: the model's, or that of codes, see BlockShape.

    Args:
        requested: one of KV_CACHE_DTYPES, see settle_cache().
        config: model config of the checkpoint.
        dtype: the model runs in.

    Raises:
        ConfigError: the model has no such cache.
    """
    flag = f"--kv-cache-dtype {requested}"
    if requested == "auto":
        return dtype
    if dtype != torch.bfloat16:
        raise ConfigError(f"{flag} needs bfloat16 activations, and this model runs in {dtype_name(dtype)}")
    if requested == "bfloat16":
        return dtype
    if config.encoder is not None:
        raise ConfigError(f"{flag} has no use: {config.architecture} has no KV cache")
    return CODE_DTYPES[requested]


def _why_not(codes: str, config: ModelConfig, dtype: torch.dtype, scales: Callable[[], Range]) -> str:
    """Return why a cache stays in the model's dtype although the checkpoint asks for codes; "" if not."""
    if dtype != torch.bfloat16:
        return f"codes need bfloat16 activations, and this model runs in {dtype_name(dtype)}"
    if codes != "fp8":
        return ""
    found = scales()
    if found is not None and found[0] < _LEAST_SCALE:
        return (
            f"a scale of {found[0]:.3g} is for numbers below those of which E4M3 with scale 1 keeps four bits"
        )
    return _beyond(found)


def _beyond(scales: Range) -> str:
    """Return what E4M3 with scale 1 would cut off; "" if nothing."""
    if scales is None or scales[1] <= 1.0:
        return ""
    return (
        f"keys or values of this checkpoint reach {math.ceil(_LARGEST * scales[1])} (its scales say so), "
        f"and E4M3 ends at {_LARGEST:.0f}"
    )

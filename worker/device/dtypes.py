"""Which dtype a model runs in, given the setting, the checkpoint and the device."""

from __future__ import annotations

import logging

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.device.base import Device

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(requested: str, config: ModelConfig, device: Device) -> torch.dtype:
    """Return the dtype of weights and activations.

    "auto" is the checkpoint's dtype. The CPU kernels have no float16, so a float16 checkpoint runs in
    bfloat16 there: as small and as fast, with float32's range and 3 bits less precision. `--dtype float32`
    loses nothing, at twice the memory.

    Args:
        requested: "auto", "float32", "bfloat16" or "float16".
        config: model config of the checkpoint.
        device: to compute on.

    Raises:
        ConfigError: float16 was requested on a CPU, or the name is not one of the four.
    """
    on_cpu = device.name == "cpu"
    if requested == "auto":
        if config.dtype == "float16" and on_cpu:
            detail = "float16 runs as bfloat16 on a CPU"
            log_event(logger, logging.WARNING, "dtype_changed", path=str(config.path), detail=detail)
            return torch.bfloat16
        return _DTYPES.get(config.dtype, torch.float32)
    if requested == "float16" and on_cpu:
        raise ConfigError("--dtype float16 is not supported on a CPU; take bfloat16 or float32")
    if requested not in _DTYPES:
        raise ConfigError(f"--dtype must be auto, {', '.join(_DTYPES)}, got {requested!r}")
    return _DTYPES[requested]


def check_quantization(
    quantization: str, dtype: torch.dtype, device: Device, flag: str = "--quantization"
) -> None:
    """Refuse quantised weights except with activations that the device multiplies them with.

    Args:
        quantization: "none", "int8", "int4" or "w8a8".
        dtype: of the activations.
        device: they are multiplied on.
        flag: what asked for it, for the error.

    Raises:
        ConfigError: the model runs in another dtype, or the device has no kernels for any.
    """
    if quantization != "none" and not device.coded_dtypes:
        raise ConfigError(
            f"{flag} {quantization} needs 145 KiB of shared memory per thread block, which this GPU "
            "does not have"
        )
    if quantization != "none" and dtype not in device.coded_dtypes:
        names = " or ".join(map(dtype_name, device.coded_dtypes))
        raise ConfigError(
            f"{flag} {quantization} needs {names} activations, and this model runs in "
            f"{dtype_name(dtype)}: add --dtype bfloat16"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name used on the wire: "float32", "bfloat16" or "float16"."""
    return str(dtype).removeprefix("torch.")

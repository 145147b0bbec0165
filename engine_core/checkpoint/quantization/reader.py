"""Which methods of quantization are read, and which reader handles the config of each."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.awq import read_awq
from splitserve.engine_core.checkpoint.quantization.compressed_tensors import read_compressed_tensors
from splitserve.engine_core.checkpoint.quantization.fp8 import read_fp8
from splitserve.engine_core.checkpoint.quantization.gptq import read_gptq
from splitserve.engine_core.checkpoint.quantization.modelopt import read_modelopt
from splitserve.engine_core.checkpoint.quantization.schemes import Quantization

METHODS = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
}
"""By `quant_method`, in the order in which errors list them."""

# Where ModelOpt writes its config if not into config.json.
MODELOPT_CONFIG = "hf_quant_config.json"
_FIELDS = ("quantization_config", "compression_config")


def read_quantization(directory: Path, config: Fields) -> Quantization | None:
    """Return how the matrices of a checkpoint are quantized; None if they are not.

    Args:
        directory: of the checkpoint.
        config: its config.json.

    Raises:
        ModelLoadError: names the file and the field that is missing, out of range or not supported.
    """
    present = [name for name in _FIELDS if config.has(name)]
    if len(present) > 1:
        raise config.unwanted(present[1], f"{present[0]} is there, too")
    inner = config.nested(present[0]) if present else None
    if inner is None:
        return _read_modelopt_file(directory / MODELOPT_CONFIG)
    method = inner.text("quant_method", "")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise inner.error("quant_method", f"must be one of {known}, got {method!r:.100}")
    return METHODS[method](inner)


def _read_modelopt_file(path: Path) -> Quantization | None:
    if not path.exists():
        return None
    inner = read_fields(path).nested("quantization")
    if inner is None or not inner.names & {"quant_algo", "kv_cache_quant_algo"}:
        return None
    return read_modelopt(inner)

"""How the config of a checkpoint of NVIDIA's ModelOpt is read: FP8 with a scale per tensor."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.fp8 import ACTIVATIONS
from splitserve.engine_core.checkpoint.quantization.matching import ALL, MAX_PATTERNS, exactly, wildcard
from splitserve.engine_core.checkpoint.quantization.schemes import Quantization, Rule, ScaledScheme

_KV_CACHE = "scales of the KV cache have no effect: --kv-cache-dtype says what it holds"


def read_modelopt(config: Fields) -> Quantization:
    """Read a ModelOpt config.

    Args:
        config: the object in config.json, or the one named `quantization` in hf_quant_config.json.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    algorithm = config.text("quant_algo", "")
    if algorithm.upper() != "FP8":
        raise config.error("quant_algo", f"must be FP8, got {algorithm!r}")
    rules = [Rule(exactly("lm_head"), None)]
    for field in ("exclude_modules", "ignore"):
        names = config.texts(field)
        if len(names) > MAX_PATTERNS:
            raise config.error(field, f"must hold at most {MAX_PATTERNS} names, got {len(names)}")
        rules += [Rule(wildcard(config, field, name), None) for name in names]
    notes = [ACTIVATIONS]
    if config.has("kv_cache_quant_algo") or config.has("kv_cache_scheme"):
        notes.append(_KV_CACHE)
    return Quantization("modelopt", (*rules, Rule(ALL, ScaledScheme("F8_E4M3", 0, 0))), tuple(notes))

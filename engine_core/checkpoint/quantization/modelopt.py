"""How the config of a checkpoint of NVIDIA's ModelOpt is read: FP8 with a scale per tensor."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.cache_scheme import read_cache_scheme
from splitserve.engine_core.checkpoint.quantization.fp8 import ACTIVATIONS
from splitserve.engine_core.checkpoint.quantization.matching import ALL, MAX_PATTERNS, exactly, wildcard
from splitserve.engine_core.checkpoint.quantization.schemes import Quantization, Rule, ScaledScheme


def read_modelopt(config: Fields) -> Quantization:
    """Read a ModelOpt config.

    Args:
        config: the object in config.json, or the one named `quantization` in hf_quant_config.json.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    cache = read_cache_scheme(config)
    if cache.notes and not config.has("quant_algo"):
        return Quantization("modelopt", (), cache.notes, cache.codes)
    algorithm = config.text("quant_algo", "")
    if algorithm.upper() != "FP8":
        raise config.error("quant_algo", f"must be FP8, got {algorithm!r}")
    rules = [Rule(exactly("lm_head"), None)]
    for field in ("exclude_modules", "ignore"):
        names = config.texts(field)
        if len(names) > MAX_PATTERNS:
            raise config.error(field, f"must hold at most {MAX_PATTERNS} names, got {len(names)}")
        rules += [Rule(wildcard(config, field, name), None) for name in names]
    rules.append(Rule(ALL, ScaledScheme("F8_E4M3", 0, 0)))
    return Quantization("modelopt", tuple(rules), (ACTIVATIONS, *cache.notes), cache.codes)

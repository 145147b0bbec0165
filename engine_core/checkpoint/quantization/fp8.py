"""How the config of an FP8 checkpoint is read, as DeepSeek and Qwen publish them (quant_method fp8)."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.matching import ALL, exactly, excluded
from splitserve.engine_core.checkpoint.quantization.schemes import Quantization, Rule, ScaledScheme

MAX_BLOCK = 2**16
ACTIVATIONS = "activations are not quantized: they stay in the model's dtype"


def read_fp8(config: Fields) -> Quantization:
    """Read an FP8 config: scales per block, or one per tensor.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    kind = config.text("fmt", "e4m3").lower()
    if kind not in ("e4m3", "float8_e4m3fn"):
        raise config.error("fmt", f"must be e4m3, got {kind!r}")
    scale_kind = config.text("scale_fmt", "float")
    if scale_kind not in ("float", "ue8m0"):
        raise config.error("scale_fmt", f"must be float or ue8m0, got {scale_kind!r}")
    scheme = _scheme(config)
    left_out = [exactly("lm_head")]
    left_out += [*excluded(config, "modules_to_not_convert"), *excluded(config, "ignored_layers")]
    rules = (*(Rule(pattern, None) for pattern in left_out), Rule(ALL, scheme))
    return Quantization("fp8", rules, (ACTIVATIONS,))


def _scheme(config: Fields) -> ScaledScheme:
    block = config.integers("weight_block_size", 1, MAX_BLOCK)
    if block is None:
        return ScaledScheme("F8_E4M3", 0, 0)
    if len(block) != 2:
        raise config.error("weight_block_size", f"must hold 2 numbers, got {len(block)}")
    return ScaledScheme("F8_E4M3", *block, scale="weight_scale_inv")

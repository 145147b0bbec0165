"""How the config of an AWQ checkpoint is read, as AutoAWQ writes it."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.common import read_group_size
from splitserve.engine_core.checkpoint.quantization.matching import ALL, exactly, excluded
from splitserve.engine_core.checkpoint.quantization.schemes import AwqScheme, Quantization, Rule


def read_awq(config: Fields) -> Quantization:
    """Read an AWQ config.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    version = config.text("version", "gemm").lower()
    if version != "gemm":
        raise config.error("version", f"must be gemm, got {version!r}: other layouts are not supported")
    backend = config.text("backend", "autoawq").lower()
    if backend != "autoawq":
        raise config.error("backend", f"must be autoawq, got {backend!r}")
    bits = "w_bit" if config.has("w_bit") else "bits"
    if config.integer(bits, 1, 64) != 4:
        raise config.error(bits, "must be 4")
    if not config.boolean("zero_point", True):
        raise config.error("zero_point", "must be true")
    group = "q_group_size" if config.has("q_group_size") else "group_size"
    scheme = AwqScheme(read_group_size(config, group))
    left_out = [exactly("lm_head"), *excluded(config, "modules_to_not_convert")]
    return Quantization("awq", (*(Rule(pattern, None) for pattern in left_out), Rule(ALL, scheme)))

"""How the config of a GPTQ checkpoint is read, as AutoGPTQ, GPTQModel and optimum write it."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.common import read_bits, read_group_size
from splitserve.engine_core.checkpoint.quantization.matching import (
    ALL,
    MAX_PATTERNS,
    exactly,
    excluded,
    regular,
    within,
)
from splitserve.engine_core.checkpoint.quantization.schemes import GptqScheme, Quantization, Rule

# By the name of the format: what is added to a stored zero point.
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_BLOCK = "modules_in_block_to_quantize"


def read_gptq(config: Fields) -> Quantization:
    """Read a GPTQ config.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    for field, reason in (
        ("adapter", "adapters of a quantized model are not supported"),
        ("rotation", "rotated weights are not supported"),
    ):
        if config.has(field):
            raise config.unwanted(field, reason)
    if config.boolean("is_marlin_format", False):
        raise config.unwanted("is_marlin_format", "weights repacked for a GPU kernel are not supported")
    packed = config.text("pack_dtype", "int32").removeprefix("torch.")
    if packed != "int32":
        raise config.error("pack_dtype", f"must be int32, got {packed!r}")
    scheme = GptqScheme(
        bits=read_bits(config, "bits"),
        group_size=read_group_size(config, "group_size"),
        zero_offset=_zero_offset(config),
        has_order=config.boolean("desc_act", False),
    )
    rules = _dynamic_rules(config, scheme)
    rules += [Rule(pattern, None) for pattern in excluded(config, "modules_to_not_convert")]
    if not config.boolean("lm_head", False):
        rules.append(Rule(exactly("lm_head"), None))
    return Quantization("gptq", (*rules, *_base_rules(config, scheme)))


def _zero_offset(config: Fields) -> int:
    name = config.text("checkpoint_format", config.text("format", "gptq"))
    if name not in _ZERO_OFFSETS:
        raise config.error("checkpoint_format", f"must be one of {', '.join(_ZERO_OFFSETS)}, got {name!r}")
    return _ZERO_OFFSETS[name]


def _base_rules(config: Fields, scheme: GptqScheme) -> list[Rule]:
    if not config.has(_BLOCK):
        return [Rule(ALL, scheme)]
    return [Rule(within(name), scheme) for name in config.nested_texts(_BLOCK)]


def _dynamic_rules(config: Fields, scheme: GptqScheme) -> list[Rule]:
    """Rules of GPTQModel's `dynamic`: patterns with settings of their own, or with -: of what is left out."""
    dynamic = config.nested("dynamic")
    if dynamic is None:
        return []
    rules = []
    if len(dynamic.names) > MAX_PATTERNS:
        raise config.error("dynamic", f"must hold at most {MAX_PATTERNS} patterns")
    for name in dynamic.ordered_names:
        text = name.removeprefix("-:").removeprefix("+:")
        changed = None if name.startswith("-:") else _changed(dynamic, name, scheme)
        rules.append(Rule(regular(config, "dynamic", text), changed))
    return rules


def _changed(dynamic: Fields, name: str, scheme: GptqScheme) -> GptqScheme:
    inner = dynamic.nested(name)
    if inner is None:
        return scheme
    return scheme._replace(
        bits=read_bits(inner, "bits", scheme.bits),
        group_size=read_group_size(inner, "group_size", scheme.group_size),
        has_order=inner.boolean("desc_act", scheme.has_order),
    )

"""How the config of a compressed-tensors checkpoint is read, as LLM Compressor writes it."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.cache_scheme import read_cache_scheme
from splitserve.engine_core.checkpoint.quantization.common import read_bits, read_group_size
from splitserve.engine_core.checkpoint.quantization.fp8 import ACTIVATIONS, MAX_BLOCK
from splitserve.engine_core.checkpoint.quantization.matching import (
    ALL,
    MAX_PATTERNS,
    ModulePattern,
    exactly,
    regular,
)
from splitserve.engine_core.checkpoint.quantization.schemes import (
    PackedScheme,
    Quantization,
    Rule,
    ScaledScheme,
    Scheme,
)

_MAX_GROUPS = 64
# Which of its formats hold integers packed into words, and which 8-bit values as they are.
_PACKED = "pack-quantized"
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_MIXED = "mixed-precision"
_LINEAR = "Linear"
_STRATEGIES = ("tensor", "channel", "group", "block")
_STATIC = "input_activations have scales of each token where the config says one for all, or offsets"


def read_compressed_tensors(config: Fields) -> Quantization:
    """Read a compressed-tensors config: groups of modules, each with a scheme; or one of the KV cache only.

    Raises:
        ModelLoadError: names the field that is out of range or not supported.
    """
    _refuse_unsupported(config)
    cache = read_cache_scheme(config)
    notes = list(cache.notes)
    rules = [Rule(_pattern(config, "ignore", name), None) for name in _texts(config, "ignore")]
    groups = config.nested("config_groups")
    if cache.notes and (groups is None or groups.is_empty):
        return Quantization("compressed-tensors", (), cache.notes, cache.codes)
    if groups is None or not 1 <= len(groups.names) <= _MAX_GROUPS:
        raise config.error("config_groups", f"must hold 1 to {_MAX_GROUPS} groups")
    specific: list[Rule] = []
    general: list[Rule] = []
    for name in groups.ordered_names:
        group = groups.nested(name)
        if group is None:
            continue
        scheme = _scheme(group, config.text("format", ""))
        note = _note(group, scheme)
        if note and note not in notes:
            notes.append(note)
        for target in _texts(group, "targets"):
            # Names and patterns take precedence over a class of modules.
            (general if target == _LINEAR else specific).append(
                Rule(_pattern(group, "targets", target), scheme)
            )
    return Quantization("compressed-tensors", (*rules, *specific, *general), tuple(notes), cache.codes)


def _refuse_unsupported(config: Fields) -> None:
    sparsity = config.nested("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise config.unwanted("sparsity_config", "sparse weights are not supported")
    transform = config.nested("transform_config")
    if transform is not None and not transform.is_empty:
        raise config.unwanted("transform_config", "rotated weights are not supported")
    status = config.text("quantization_status", "compressed")
    if status not in ("compressed", "frozen"):
        raise config.error("quantization_status", f"must be compressed or frozen, got {status!r}")


def _texts(config: Fields, field: str) -> tuple[str, ...]:
    names = config.texts(field)
    if len(names) > MAX_PATTERNS:
        raise config.error(field, f"must hold at most {MAX_PATTERNS} names, got {len(names)}")
    return names


def _pattern(config: Fields, field: str, target: str) -> ModulePattern:
    if target == _LINEAR:
        return ALL
    if target.startswith("re:"):
        return regular(config, field, target.removeprefix("re:"))
    if target[:1].isupper() and "." not in target:
        raise config.error(field, f"names the class {target!r:.100}; supported is {_LINEAR}")
    return exactly(target)


def _scheme(group: Fields, outer_format: str) -> Scheme:
    if group.has("output_activations"):
        raise group.unwanted("output_activations", "quantized outputs are not supported")
    weights = group.nested("weights")
    if weights is None:
        raise group.error("weights", "is missing: only quantized weights are supported")
    name = group.text("format", outer_format)
    if name == _PACKED:
        return _packed(weights)
    if name in _PLAIN:
        scheme = _plain(weights)
        is_per_output = scheme.dtype == "I8" and scheme.is_symmetric and not scheme.block_columns
        return scheme._replace(takes_int8=is_per_output and _are_int8(group))
    known = ", ".join((_PACKED, *_PLAIN, _MIXED))
    raise group.error("format", f"must be one of {known} with a format of each group, got {name!r:.100}")


def _note(group: Fields, scheme: Scheme) -> str:
    """Return what of a group's activations has no effect; "" if all has."""
    inputs = group.nested("input_activations")
    if inputs is None:
        return ""
    if not isinstance(scheme, ScaledScheme) or not scheme.takes_int8:
        return ACTIVATIONS
    is_as_said = inputs.is_true("dynamic") and inputs.boolean("symmetric", True)
    return "" if is_as_said and inputs.text("strategy", "token") == "token" else _STATIC


def _are_int8(group: Fields) -> bool:
    inputs = group.nested("input_activations")
    return (
        inputs is not None
        and inputs.text("type", "int") == "int"
        and inputs.integer("num_bits", 1, 64, 8) == 8
    )


def _packed(weights: Fields) -> PackedScheme:
    if weights.text("type", "int") != "int":
        raise weights.error("type", "must be int where integers are packed")
    strategy = _strategy(weights, ("channel", "group"))
    order = "" if weights.has("actorder") and weights.is_true("actorder") else weights.text("actorder", "")
    return PackedScheme(
        bits=read_bits(weights, "num_bits"),
        group_size=_group_size(weights, strategy),
        is_symmetric=weights.boolean("symmetric", True),
        has_order=order.lower() in ("group", "dynamic"),
    )


def _plain(weights: Fields) -> ScaledScheme:
    kind = weights.text("type", "int")
    if kind not in ("int", "float") or weights.integer("num_bits", 1, 64) != 8:
        raise weights.error("num_bits", "must be 8, of type int or float")
    strategy = _strategy(weights, _STRATEGIES)
    rows, columns = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy, (1, 1))
    if strategy == "group":
        columns = _group_size(weights, strategy)
    elif strategy == "block":
        block = weights.integers("block_structure", 1, MAX_BLOCK)
        if block is None or len(block) != 2:
            raise weights.error("block_structure", "must hold 2 numbers")
        rows, columns = block
    is_symmetric = weights.boolean("symmetric", True)
    if kind == "float" and not is_symmetric:
        raise weights.error("symmetric", "must be true for floats")
    return ScaledScheme("I8" if kind == "int" else "F8_E4M3", rows, columns, is_symmetric=is_symmetric)


def _strategy(weights: Fields, allowed: tuple[str, ...]) -> str:
    default = (
        "group" if weights.has("group_size") and weights.integer("group_size", -1, 2**20) > 0 else "channel"
    )
    strategy = weights.text("strategy", default)
    if strategy not in allowed:
        raise weights.error("strategy", f"must be one of {', '.join(allowed)}, got {strategy!r:.100}")
    if weights.is_true("dynamic"):
        raise weights.error("dynamic", "must be false for weights")
    return strategy


def _group_size(weights: Fields, strategy: str) -> int:
    if strategy == "channel":
        return 0
    size = read_group_size(weights, "group_size")
    if not size:
        raise weights.error("group_size", "must be above 0 where the strategy is group")
    return size

"""Which codes should the KV cache hold, according to the config of a quantized checkpoint?"""

from __future__ import annotations

from typing import Literal, NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields

CacheCodes = Literal["", "fp8", "int8"]
_SCALES = (
    "scales of the KV cache have no effect: E4M3 is a float, as precise with scale 1 where that is in range, "
    "and int8 has a scale for each token and head"
)
_OTHER = (
    "a KV cache of {} is not supported: it holds what --kv-cache-dtype says, by default the model's dtype"
)
_ALGORITHMS: dict[str, CacheCodes] = {"FP8": "fp8", "INT8": "int8"}


class CacheScheme(NamedTuple):
    """What a config says about the KV cache.

    Attributes:
        codes: that it should hold; "" if nothing is said, or what is not supported.
        notes: what of it has no effect, a line each.
    """

    codes: CacheCodes = ""
    notes: tuple[str, ...] = ()


def read_cache_scheme(config: Fields) -> CacheScheme:
    """Read `kv_cache_scheme`, an object as for weights, and ModelOpt's `kv_cache_quant_algo`, a name.

    Raises:
        ModelLoadError: names the field that is out of range.
    """
    scheme = config.nested("kv_cache_scheme")
    if scheme is not None:
        kind, bits = scheme.text("type", "int"), scheme.integer("num_bits", 1, 64, 8)
        codes: CacheCodes = "fp8" if kind == "float" else "int8"
        return _chosen(codes if bits == 8 and kind in ("int", "float") else "", f"{kind}{bits}")
    if not config.has("kv_cache_quant_algo"):
        return CacheScheme()
    algorithm = config.text("kv_cache_quant_algo", "").upper()
    return _chosen(_ALGORITHMS.get(algorithm, ""), algorithm)


def _chosen(codes: CacheCodes, name: str) -> CacheScheme:
    return CacheScheme(codes, (_SCALES if codes else _OTHER.format(name[:100]),))

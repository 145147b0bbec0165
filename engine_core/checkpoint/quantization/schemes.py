"""How one quantized matrix [N, K] is stored: its integers or small floats, and the groups that share a scale.

Which tensors it consists of, and the arithmetic, are the worker's (worker/weights/formats).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from splitserve.engine_core.checkpoint.quantization.cache_scheme import CacheCodes
from splitserve.engine_core.checkpoint.quantization.matching import ModulePattern


class GptqScheme(NamedTuple):
    """`qweight`, `qzeros`, `scales` and `g_idx`, as GPTQ's tools write them.

    Attributes:
        bits: of an integer, 4 or 8.
        group_size: inputs that share a scale; 0 for all.
        zero_offset: what is added to a stored zero point: 1 in the first version of the format, else 0.
        has_order: `g_idx` must be there and says which group an input belongs to (act-order).
    """

    bits: int
    group_size: int
    zero_offset: int
    has_order: bool


class AwqScheme(NamedTuple):
    """`qweight`, `qzeros` and `scales` in the layout that AWQ calls GEMM; 4 bits, with zero points.

    Attributes:
        group_size: inputs that share a scale; 0 for all.
    """

    group_size: int


class PackedScheme(NamedTuple):
    """`weight_packed`, `weight_scale` and perhaps `weight_zero_point`, as compressed-tensors packs integers.

    Attributes:
        bits: of an integer, 4 or 8.
        group_size: inputs that share a scale; 0 for all.
        is_symmetric: there are no zero points.
        has_order: `weight_g_idx` must be there and says which group an input belongs to.
    """

    bits: int
    group_size: int
    is_symmetric: bool
    has_order: bool


class ScaledScheme(NamedTuple):
    """`weight` in 8 bits and a scale for every block of rows and columns.

    Attributes:
        dtype: of the weight, as safetensors names it.
        block_rows, block_columns: size of a block; 0 for all.
        scale: name of the scales, `weight_scale` or `weight_scale_inv`; both are multiplied with.
        is_symmetric: there are no zero points.
        takes_int8: activations are to be int8, too.
    """

    dtype: Literal["I8", "F8_E4M3"]
    block_rows: int
    block_columns: int
    scale: str = "weight_scale"
    is_symmetric: bool = True
    takes_int8: bool = False


Scheme = GptqScheme | AwqScheme | PackedScheme | ScaledScheme


class Rule(NamedTuple):
    """How the modules that a pattern names are stored; None for as they are in any other checkpoint."""

    pattern: ModulePattern
    scheme: Scheme | None


class Quantization(NamedTuple):
    """How the matrices of a checkpoint are stored.

    Attributes:
        method: its `quant_method`.
        rules: the first whose pattern matches a module counts.
        notes: what of the config has no effect here, a line each.
        cache_codes: what the KV cache should hold; "" if the config says nothing.
    """

    method: str
    rules: tuple[Rule, ...]
    notes: tuple[str, ...] = ()
    cache_codes: CacheCodes = ""

    def scheme_of(self, module: str) -> Scheme | None:
        """Return how a module's matrix is stored; None if as in any other checkpoint."""
        return next((rule.scheme for rule in self.rules if rule.pattern.matches(module)), None)

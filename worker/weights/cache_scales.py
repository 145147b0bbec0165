"""In which range are the scales that a checkpoint has for a quantized KV cache?"""

from __future__ import annotations

import math
import re
from pathlib import Path

from splitserve.engine_core.checkpoint.weight_files import Checkpoint, CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.weights.reading import read_whole

# Beside the layer's attention or its projections, of keys and values apart or together.
_NAMES = re.compile(r"(^|\.)(k_scale|v_scale|kv_scale|[kv]_proj\.output_scale)$")
_DTYPES = ("F32", "BF16", "F16")
# One of a tensor, or one of each head.
_MAX_ELEMENTS = 1024


def read_cache_scales(directory: Path) -> tuple[float, float] | None:
    """Return the least and the greatest scale of keys and values, which are codes times it; None without any.

    Numbers that are not above 0 do not count: tools write -1 where they have found nothing.

    Raises:
        ModelLoadError: a file is damaged, or a tensor of such a name has another dtype, is too large or holds
            an infinity.
    """
    with Checkpoint.open(directory) as checkpoint:
        named = [tensor for tensor in checkpoint if _NAMES.search(tensor.name)]
        found = [value for tensor in named for value in _values(tensor) if value > 0]
    return (min(found), max(found)) if found else None


def _values(tensor: CheckpointTensor) -> list[float]:
    dtype, shape = tensor.entry.dtype, tensor.entry.shape
    if dtype not in _DTYPES or math.prod(shape) > _MAX_ELEMENTS:
        raise ModelLoadError(
            f"{tensor.file.path}: tensor {tensor.name!r} has dtype {dtype} and shape {list(shape)}; scales "
            f"of the KV cache are at most {_MAX_ELEMENTS} numbers of {', '.join(_DTYPES)}"
        )
    values: list[float] = read_whole(tensor).float().reshape(-1).tolist()
    if any(map(math.isinf, values)):
        raise ModelLoadError(f"{tensor.file.path}: tensor {tensor.name!r} holds an infinite scale")
    return values

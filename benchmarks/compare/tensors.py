"""What is in a safetensors file, without torch? The format: https://huggingface.co/docs/safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entries by tensor name and the offset at which the data begin."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
    entries.pop("__metadata__", None)
    return entries, 8 + size


def num_weight_bytes(folder: Path) -> int:
    """Return the bytes of all tensors of a checkpoint; with tied embeddings, what one decode step reads."""
    ends = (_header(path)[0].values() for path in folder.glob("*.safetensors"))
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for file in ends for entry in file)


def shapes_of(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor of a checkpoint, by name."""
    files = (_header(path)[0] for path in sorted(folder.glob("*.safetensors")))
    return {name: entry["shape"] for file in files for name, entry in file.items()}


def read_bf16(folder: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and values of each tensor of a bf16 checkpoint; raises ValueError for another dtype."""
    import numpy as np

    for path in sorted(folder.glob("*.safetensors")):
        entries, start = _header(path)
        for name, entry in entries.items():
            if entry["dtype"] != "BF16":
                raise ValueError(f"{path}: {name} is {entry['dtype']}, not BF16")
            begin, end = entry["data_offsets"]
            raw = np.fromfile(path, np.uint16, (end - begin) // 2, offset=start + begin)
            # bf16 is the upper half of a float32.
            yield name, (raw.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])

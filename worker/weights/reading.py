"""How rectangles of a checkpoint's tensor are read: in one go where they hold whole rows, else row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.worker.layers.parameter import Window

# By the name of the file format: what the parameters of a model and the parts of quantized ones may have.
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


def read_rectangle(
    source: CheckpointTensor, window: Window, row_elements: int, target: npt.NDArray[np.uint8]
) -> None:
    """Fill target with the bytes of a rectangle, of which no more is read than it holds.

    Args:
        source: of a dtype in DTYPES.
        window: its rows and columns; columns is None for a vector.
        row_elements: elements of a row of the tensor.
        target: as large as the rectangle.

    Raises:
        ModelLoadError: the file was truncated since it was checked.
    """
    itemsize = DTYPES[source.entry.dtype].itemsize
    begin, columns = source.entry.begin, window.columns
    if columns is None or len(columns) == row_elements:
        source.file.read_into(begin + window.rows.start * row_elements * itemsize, target.data)
        return
    for row, piece in zip(window.rows, target.reshape(len(window.rows), -1), strict=True):
        source.file.read_into(begin + (row * row_elements + columns.start) * itemsize, piece.data)


def read_matrix(source: CheckpointTensor, rows: range, columns: range) -> torch.Tensor:
    """Return a rectangle [n, k] of a matrix; raises as read_rectangle does."""
    values = torch.empty(len(rows), len(columns), dtype=DTYPES[source.entry.dtype])
    target = values.view(torch.uint8).numpy().reshape(-1)
    read_rectangle(source, Window(rows, columns), source.entry.shape[1], target)
    return values


def read_whole(source: CheckpointTensor) -> torch.Tensor:
    """Return a small tensor in its shape; raises as read_rectangle does."""
    values = torch.empty(source.entry.shape, dtype=DTYPES[source.entry.dtype])
    source.file.read_into(source.entry.begin, values.reshape(-1).view(torch.uint8).numpy().data)
    return values

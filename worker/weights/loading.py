"""How checkpoint tensors are loaded into a model's fused parameters: matched first, then streamed in."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.checkpoint.weight_files import Checkpoint, CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import Parameter, Part, Window
from splitserve.worker.layers.weight_plan import WeightPlan

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Loader = Callable[[str | Path, WeightPlan, torch.dtype, Device, Progress], None]
"""load_weights, or what fills a plan's parameters in its place."""

# Large enough for full disk speed, small enough that progress is smooth and the staging buffer negligible.
CHUNK_BYTES = 16 * 2**20
_LOADABLE = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Buffers that old versions of the reference implementation saved beside the weights.
_HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias)$")
_MAX_NAMED = 5


class Assignment(NamedTuple):
    """One checkpoint tensor and where it goes."""

    source: CheckpointTensor
    parameter: Parameter
    part: Part


def load_weights(
    directory: str | Path, plan: WeightPlan, dtype: torch.dtype, device: Device, progress: Progress
) -> None:
    """Check a checkpoint against a plan, then allocate the plan's parameters and fill them.

    Args:
        directory: of the checkpoint.
        plan: what the model needs.
        dtype: of the parameters; tensors of another dtype are converted.
        device: where the parameters go.
        progress: called with (loaded_bytes, total_bytes) of what this rank reads, at least once per 16 MiB.

    Raises:
        ModelLoadError: names file and tensor; before anything is allocated, unless a file is cut short while
            it is read.
    """
    with Checkpoint.open(Path(directory)) as checkpoint:
        assignments = match(checkpoint, plan)
        total_bytes = sum(map(_num_bytes, assignments))
        progress(0, total_bytes)
        _allocate(plan, dtype, device)
        loaded_bytes = 0
        staging = _Staging(device)
        # In file order, so that the disk is read sequentially.
        for assignment in sorted(assignments, key=_file_order):
            for num_bytes in _stream(assignment, staging):
                loaded_bytes += num_bytes
                progress(loaded_bytes, total_bytes)


def match(checkpoint: Checkpoint, plan: WeightPlan) -> list[Assignment]:
    """Pair every part of the plan with its tensor.

    Raises:
        ModelLoadError: a tensor is missing, or has a wrong shape or a dtype that cannot be loaded.
    """
    assignments = []
    missing = []
    for parameter in plan:
        for part in parameter.parts:
            source = checkpoint.find(part.name, plan.optional_prefix)
            if source is None:
                missing.append(part.name)
            else:
                _check_fits(source, part)
                assignments.append(Assignment(source, parameter, part))
    if missing:
        raise ModelLoadError(f"{checkpoint.file_names}: missing {_named(missing)}")
    _report_unexpected(checkpoint, plan, assignments)
    return assignments


def _check_fits(source: CheckpointTensor, part: Part) -> None:
    where = f"{source.file.path}: tensor {source.name!r}"
    if source.entry.shape != part.shape:
        raise ModelLoadError(
            f"{where} has shape {list(source.entry.shape)}, config.json asks for {list(part.shape)}"
        )
    if source.entry.dtype not in _LOADABLE:
        raise ModelLoadError(
            f"{where} has dtype {source.entry.dtype}; supported are {', '.join(_LOADABLE)}, not quantized"
        )


def _report_unexpected(checkpoint: Checkpoint, plan: WeightPlan, assignments: list[Assignment]) -> None:
    used = {assignment.source.name for assignment in assignments} | plan.ignored_names
    extra = [
        tensor.name for tensor in checkpoint if tensor.name not in used and not _HARMLESS.search(tensor.name)
    ]
    if extra:
        log_event(
            logger,
            logging.WARNING,
            "tensors_ignored",
            path=str(checkpoint.directory),
            count=len(extra),
            names=", ".join(extra[:_MAX_NAMED]),
        )


def _named(names: list[str]) -> str:
    shown = ", ".join(repr(name[:200]) for name in names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"


def _allocate(plan: WeightPlan, dtype: torch.dtype, device: Device) -> None:
    try:
        plan.allocate(dtype, device)
    except RuntimeError as error:
        raise ModelLoadError(f"no memory for {plan.num_elements} weights: {error}") from error


def _num_bytes(assignment: Assignment) -> int:
    """Bytes that are read of a tensor."""
    window = assignment.parameter.window(assignment.part)
    return len(window.rows) * window.width * _LOADABLE[assignment.source.entry.dtype].itemsize


def _file_order(assignment: Assignment) -> tuple[str, int]:
    return assignment.source.file.path.name, assignment.source.entry.begin


class _Staging:
    """The buffer of all chunks, in memory that the device copies from; it grows to the largest."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return that many bytes of undefined content, lost when taken again."""
        if self._buffer.numel() < num_bytes:
            self._buffer = self._device.host_pages((num_bytes,), torch.uint8)
        return self._buffer[:num_bytes]


def _stream(assignment: Assignment, staging: _Staging) -> Iterable[int]:
    """Read what this rank needs of a tensor in chunks of whole rows; yield the bytes of each."""
    source, parameter, part = assignment
    window = parameter.window(part)
    dtype = _LOADABLE[source.entry.dtype]
    row_bytes = window.width * dtype.itemsize
    num_rows = len(window.rows)
    # Whole heads where their elements change places.
    unit = part.pairs.head_dim if part.pairs else 1
    units = max(1, CHUNK_BYTES // row_bytes // unit)
    rows_per_chunk = units * unit if parameter.takes_pieces(part) else num_rows
    for first in range(0, num_rows, rows_per_chunk):
        rows = window.rows[first : first + rows_per_chunk]
        chunk = staging.take(len(rows) * row_bytes)
        _read(source, Window(rows, window.columns), chunk.numpy())
        values = _shaped(chunk.view(dtype), window.columns)
        parameter.fill(part, first, part.pairs.parted(values) if part.pairs else values)
        yield len(chunk)


def _shaped(values: torch.Tensor, columns: range | None) -> torch.Tensor:
    return values if columns is None else values.view(-1, len(columns))


def _read(source: CheckpointTensor, window: Window, target: npt.NDArray[np.uint8]) -> None:
    """Read a rectangle: in one go if it holds whole rows, else row by row, so that no rank reads it all."""
    itemsize = _LOADABLE[source.entry.dtype].itemsize
    begin, columns = source.entry.begin, window.columns
    row_elements = math.prod(source.entry.shape[1:])
    if columns is None or len(columns) == row_elements:
        source.file.read_into(begin + window.rows.start * row_elements * itemsize, target.data)
        return
    for row, piece in zip(window.rows, target.reshape(len(window.rows), -1), strict=True):
        source.file.read_into(begin + (row * row_elements + columns.start) * itemsize, piece.data)

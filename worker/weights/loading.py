"""How checkpoint tensors are loaded into a model's fused parameters: matched first, then streamed in."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from splitserve.engine_core.checkpoint.weight_files import Checkpoint
from splitserve.engine_core.errors import ModelLoadError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import PackedParameter, Window
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.weights.assignment import Assignment
from splitserve.worker.weights.formats.base import StoredTensor, where
from splitserve.worker.weights.formats.table import WeightFormats
from splitserve.worker.weights.kept_forms import keep_integers
from splitserve.worker.weights.room import check_room
from splitserve.worker.weights.tensor_source import Staging

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Loader = Callable[[str | Path, WeightPlan, torch.dtype, Device, Progress], None]
"""load_weights, or what fills a plan's parameters in its place."""

# Large enough for full disk speed, small enough that progress is smooth and that what is computed of a piece,
# up to four times as much, is little beside the weights: see benchmarks/load_memory.py.
CHUNK_BYTES = 4 * 2**20
# Buffers that old versions of the reference implementation saved beside the weights, and scales of quantized
# activations and KV caches.
_HARMLESS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias|embeddings\.position_ids|(input|activation|output|[qkv]|kv)_(scale|zero_point))$"
)
_MAX_NAMED = 5
# More than any code of 8 bits, as an integer or as FP8.
_MOST_CODES = 512.0


def load_weights(
    directory: str | Path, plan: WeightPlan, dtype: torch.dtype, device: Device, progress: Progress
) -> None:
    """Check a checkpoint against a plan, then allocate the plan's parameters and fill them.

    Args:
        directory: of the checkpoint.
        plan: what the model needs.
        dtype: of the parameters; tensors of another dtype are converted.
        device: where the parameters go.
        progress: called with (loaded_bytes, total_bytes) of what this rank reads, at least once per 4 MiB.

    Raises:
        ModelLoadError: names file and tensor; before anything is allocated, unless a file is cut short while
            it is read, or a quantized matrix turns out to hold an infinity or a NaN.
        NoRoomError: the parameters need more memory than the device has.
    """
    with Checkpoint.open(Path(directory)) as checkpoint:
        assignments = _prepare(checkpoint, plan, dtype, device)
        check_room(plan.planned_bytes(dtype, device), device.free_bytes)
        total_bytes = sum(map(_num_bytes, assignments))
        progress(0, total_bytes)
        _allocate(plan, dtype, device)
        _report_quantized(checkpoint, plan, assignments)
        loaded_bytes = 0
        staging = Staging(device)
        # In file order, so that the disk is read sequentially.
        for assignment in sorted(assignments, key=_file_order):
            for num_bytes in _stream(assignment, staging):
                loaded_bytes += num_bytes
                progress(loaded_bytes, total_bytes)


def weigh(directory: Path, plan: WeightPlan, dtype: torch.dtype, device: Device) -> int:
    """Return how much memory load_weights would fill, after the same checks; raises as it does."""
    with Checkpoint.open(directory) as checkpoint:
        _prepare(checkpoint, plan, dtype, device)
        return plan.planned_bytes(dtype, device)


def _prepare(
    checkpoint: Checkpoint, plan: WeightPlan, dtype: torch.dtype, device: Device
) -> list[Assignment]:
    """Pair a plan's parts with tensors, and decide in which form each parameter is kept."""
    assignments = match(checkpoint, plan)
    for stored in _quantized(assignments):
        stored.check_values()
    return keep_integers(assignments, dtype, device)


def match(checkpoint: Checkpoint, plan: WeightPlan) -> list[Assignment]:
    """Pair every part of the plan with its tensor.

    Raises:
        ModelLoadError: a tensor is missing, or has a wrong shape or a dtype that cannot be loaded.
    """
    formats = WeightFormats(checkpoint, plan.quantization, plan.optional_prefix)
    assignments = []
    missing: dict[str, None] = {}
    for parameter in plan:
        for part in parameter.parts:
            source = formats.find(part, missing)
            if source is not None:
                assignments.append(Assignment(source, parameter, part))
    if missing:
        raise ModelLoadError(f"{checkpoint.file_names}: missing {_named(list(missing))}")
    _report_unexpected(checkpoint, plan, assignments)
    return assignments


def _report_unexpected(checkpoint: Checkpoint, plan: WeightPlan, assignments: list[Assignment]) -> None:
    used = {tensor.name for assignment in assignments for tensor in assignment.source.tensors}
    ignored = plan.ignored_names
    used |= ignored
    beginnings = tuple(name for name in ignored if name.endswith("."))
    extra = [
        tensor.name
        for tensor in checkpoint
        if tensor.name not in used
        and not tensor.name.startswith(beginnings)
        and f"{tensor.name.rpartition('.')[0]}.weight" not in ignored
        and not _HARMLESS.search(tensor.name)
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


def _quantized(assignments: list[Assignment]) -> list[StoredTensor]:
    return [each.source for each in assignments if isinstance(each.source, StoredTensor)]


def _report_quantized(checkpoint: Checkpoint, plan: WeightPlan, assignments: list[Assignment]) -> None:
    """Say what the file's quantized matrices take in memory, which is more if they become floats."""
    quantized = _quantized(assignments)
    if not quantized:
        return
    sizes = {tensor.name: tensor.entry.num_bytes for each in assignments for tensor in each.source.tensors}
    log_event(
        logger,
        logging.INFO,
        "weights_quantized",
        path=str(checkpoint.directory),
        matrices=len(quantized),
        bytes_in_files=sum(sizes.values()),
        bytes_in_memory=plan.num_bytes,
        as_integers=sum(each.integers is not None for each in assignments),
        detail="integers are kept as they are; the others as --quantization says, by default as floats",
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
    """Bytes that are read of the files."""
    return assignment.source.num_bytes(_window(assignment))


def _window(assignment: Assignment) -> Window:
    """Return the region that is read; with integers no scale depends on what other ranks hold."""
    parameter = assignment.parameter
    if assignment.integers and isinstance(parameter, PackedParameter):
        return parameter.own_window(assignment.part)
    return parameter.window(assignment.part)


def _file_order(assignment: Assignment) -> tuple[str, int]:
    first = assignment.source.tensors[0]
    return first.file.path.name, first.entry.begin


def _stream(assignment: Assignment, staging: Staging) -> Iterable[int]:
    """Read what this rank needs of a part in pieces of whole rows; yield the bytes of each."""
    source, parameter, part, integers = assignment
    window = _window(assignment)
    num_rows = len(window.rows)
    # Whole heads where their elements change places.
    unit = part.pairs.head_dim if part.pairs else 1
    units = max(1, CHUNK_BYTES // source.row_bytes(window) // unit)
    rows_per_chunk = units * unit if parameter.takes_pieces(part) else num_rows
    for first in range(0, num_rows, rows_per_chunk):
        piece = Window(window.rows[first : first + rows_per_chunk], window.columns)
        if integers:
            _fill_integers(assignment, first, piece)
        else:
            values = source.read(piece, staging)
            parameter.fill(part, first, part.pairs.parted(values) if part.pairs else values)
        yield source.num_bytes(piece)


def _fill_integers(assignment: Assignment, first: int, piece: Window) -> None:
    source, parameter, part, integers = assignment
    assert integers is not None, "its numbers are taken"
    assert isinstance(source, StoredTensor)
    assert isinstance(parameter, PackedParameter)
    codes = source.load_codes(piece)
    scales, offsets = codes.scales, codes.offsets
    # No weight is as large, which is a number only if scale and offset are.
    bounds = scales.abs() * _MOST_CODES if offsets is None else scales.abs() * _MOST_CODES + offsets.abs()
    if not bounds.isfinite().all():
        raise ModelLoadError(f"{where(source.tensors[0])} holds values that are not finite numbers")
    if part.pairs:
        codes = codes.each(part.pairs.parted)
    parameter.fill_codes(part, first, codes, integers)

"""Tensors of a GGUF file: rows of blocks, each with its own scales."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.gguf.tensor_types import BLOCKS
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import UNIT_COLUMNS, GroupCodes, GroupForm
from splitserve.worker.weights.formats.base import FLOATS, StoredTensor, Values, check
from splitserve.worker.weights.formats.block_values import KINDS


class BlockTensor(StoredTensor):
    """A matrix of blocks, or several of them one below the other.

    Args:
        source: the checkpoint's.
        shape: that the model needs.

    Raises:
        ModelLoadError: it has another shape, or is no matrix.
    """

    def __init__(self, source: CheckpointTensor, shape: tuple[int, ...]) -> None:
        check(source, tuple(BLOCKS) if len(shape) >= 2 else FLOATS, shape)
        super().__init__(source)
        self._source = source
        self._kind = BLOCKS[source.entry.dtype]

    def check_values(self) -> None:
        """Scales lie between the integers: what is no number is found while they are read."""

    def num_bytes(self, window: Window) -> int:
        """Bytes of the blocks."""
        return len(window.rows) * -(-window.width // self._kind.block_elements) * self._kind.block_bytes

    def integer_form(self, window: Window) -> GroupForm | None:
        """That of the kind, for whole groups."""
        form, columns = KINDS[self._kind.name].form, window.columns
        if columns is None or columns.start % form.group or columns.stop % form.group:
            return None
        has_whole_units = columns.start % UNIT_COLUMNS == 0 and columns.stop % UNIT_COLUMNS == 0
        return form._replace(has_units=form.has_units and has_whole_units)

    def load_codes(self, window: Window) -> GroupCodes:
        """Return the integers of a region; see StoredTensor.load_codes."""
        blocks, columns = self._read_blocks(window)
        kind, num_rows = KINDS[self._kind.name], len(window.rows)
        read = kind.read(blocks.view(-1, self._kind.block_bytes))
        codes, scales, offsets, units = read.each(lambda values: values.view(num_rows, -1))
        groups = slice(columns.start // kind.form.group, columns.stop // kind.form.group)
        offsets = None if offsets is None else offsets[:, groups]
        return GroupCodes(codes[:, columns], scales[:, groups], offsets, units)

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        blocks, columns = self._read_blocks(window)

        def values(rows: range) -> torch.Tensor:
            some = blocks[rows.start : rows.stop].view(-1, self._kind.block_bytes)
            return KINDS[self._kind.name].values(some).view(len(rows), -1)[:, columns]

        return values

    def _read_blocks(self, window: Window) -> tuple[torch.Tensor, slice]:
        """Return blocks of some rows, uint8 [rows, blocks * bytes], and which of their columns are wanted."""
        rows, columns = window.rows, window.columns
        assert columns is not None, "vectors are stored in floats"
        size, block_bytes = self._kind.block_elements, self._kind.block_bytes
        blocks = range(columns.start // size, -(-columns.stop // size))
        width = self._source.entry.shape[-1] // size
        data = torch.empty(len(rows), len(blocks) * block_bytes, dtype=torch.uint8)
        target, begin = data.numpy(), self._source.entry.begin
        if len(blocks) == width:
            self._source.file.read_into(begin + rows.start * width * block_bytes, target.reshape(-1).data)
        else:
            for row, piece in zip(rows, target, strict=True):
                self._source.file.read_into(begin + (row * width + blocks.start) * block_bytes, piece.data)
        first = blocks.start * size
        return data, slice(columns.start - first, columns.stop - first)

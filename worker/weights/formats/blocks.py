"""Tensors of a GGUF file: rows of blocks, each with its own scales."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.gguf.tensor_types import BLOCKS
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GROUP_COLUMNS, Quantized
from splitserve.worker.weights.formats.base import FLOATS, IntegerForm, StoredTensor, Values, check, where
from splitserve.worker.weights.formats.block_values import DECODERS, q4_0_codes


class BlockTensor(StoredTensor):
    """A matrix of blocks.

    Args:
        source: the checkpoint's.
        shape: that the model needs.

    Raises:
        ModelLoadError: it has another shape, or is no matrix.
    """

    def __init__(self, source: CheckpointTensor, shape: tuple[int, ...]) -> None:
        check(source, tuple(BLOCKS) if len(shape) == 2 else FLOATS, shape)
        super().__init__(source)
        self._source = source
        self._kind = BLOCKS[source.entry.dtype]
        self._decode = DECODERS[self._kind.name]

    def check_values(self) -> None:
        """Scales lie between the integers: what is no number is found while they are read."""

    def num_bytes(self, window: Window) -> int:
        """Bytes of the blocks."""
        return len(window.rows) * -(-window.width // self._kind.block_elements) * self._kind.block_bytes

    def integer_form(self, window: Window) -> IntegerForm:
        """int4 for whole blocks of Q4_0, whose scales are float16."""
        ends = () if window.columns is None else (window.columns.start, window.columns.stop)
        is_fit = self._kind.name == "Q4_0" and all(end % GROUP_COLUMNS == 0 for end in ends)
        return IntegerForm("int4" if is_fit else "plain", is_exact=False)

    def load_codes(self, window: Window) -> Quantized:
        """Return the integers of a region, and a scale per block; see StoredTensor.load_codes."""
        assert window.columns is not None, "vectors are stored in floats"
        blocks = range(window.columns.start // GROUP_COLUMNS, window.columns.stop // GROUP_COLUMNS)
        codes, scales = q4_0_codes(self._read_blocks(window.rows, blocks).view(-1, self._kind.block_bytes))
        if not scales.isfinite().all():
            raise ModelLoadError(f"{where(self._source)} holds values that are not finite numbers")
        num_rows = len(window.rows)
        return Quantized(codes.view(num_rows, -1), scales.bfloat16().view(num_rows, -1))

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        assert window.columns is not None, "vectors are stored in floats"
        size, columns = self._kind.block_elements, window.columns
        first = columns.start // size
        blocks = self._read_blocks(window.rows, range(first, -(-columns.stop // size)))
        taken = slice(columns.start - first * size, columns.stop - first * size)

        def values(rows: range) -> torch.Tensor:
            some = blocks[rows.start : rows.stop].view(-1, self._kind.block_bytes)
            return self._decode(some).view(len(rows), -1)[:, taken]

        return values

    def _read_blocks(self, rows: range, blocks: range) -> torch.Tensor:
        """Return blocks of some rows, uint8 [rows, blocks * bytes]."""
        width = self._source.entry.shape[-1] // self._kind.block_elements
        block_bytes = self._kind.block_bytes
        data = torch.empty(len(rows), len(blocks) * block_bytes, dtype=torch.uint8)
        target, begin = data.numpy(), self._source.entry.begin
        if len(blocks) == width:
            self._source.file.read_into(begin + rows.start * width * block_bytes, target.reshape(-1).data)
        else:
            for row, piece in zip(rows, target, strict=True):
                self._source.file.read_into(begin + (row * width + blocks.start) * block_bytes, piece.data)
        return data

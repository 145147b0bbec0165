"""The matrices of experts in MXFP4, as the custom CUDA kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from splitserve.worker.ops.quantization import GROUP_COLUMNS, GroupCodes, quantize_mxfp4

if TYPE_CHECKING:
    from splitserve.worker.ops.products import Products

_GROUP_WORDS, _WORD_CODES = 4, 8
# Of the four codes of a half of a word, in order: places of the signs, and of the lowest bits of the
# magnitudes. Must match csrc/cuda/expert_weights.cuh.
_SIGN_BITS, _MAGNITUDE_BITS = (15, 12, 14, 13), (6, 3, 0, 9)


class Mxfp4Weight:
    """A matrix [N, K] of codes of 4 bits with a scale per 32 columns of a row, filled piece by piece.

    Args:
        shape: (N, K).
        device: where it lives.

    Attributes:
        shape: as given.
        data: uint8 [N, ceil(K / 32), 16], contiguous.
        scales: uint8 [N, ceil(K / 32)], as quantize_mxfp4 returns them.

    Raises:
        RuntimeError: there is not enough memory.
    """

    __slots__ = ("data", "scales", "shape")

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        rows, columns = shape
        self.shape = shape
        num_groups = -(-columns // GROUP_COLUMNS)
        self.data = torch.empty((rows, num_groups, GROUP_COLUMNS // 2), dtype=torch.uint8, device=device)
        self.scales = torch.empty((rows, num_groups), dtype=torch.uint8, device=device)

    @classmethod
    def of(cls, matrix: torch.Tensor) -> Mxfp4Weight:
        """Quantise a whole matrix [N, K], on its device."""
        weight = cls((matrix.shape[0], matrix.shape[1]), matrix.device)
        weight.fill(matrix)
        return weight

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.data.nbytes + self.scales.nbytes

    def fill(
        self,
        source: torch.Tensor,
        first_row: int = 0,
        first_column: int = 0,
        kept: range | None = None,
    ) -> None:
        """Write whole rows, quantised unless they are such numbers already.

        Args:
            source: [n, K] of any strides and dtype.
            first_row: row of the matrix where its first element belongs.
            first_column: 0.
            kept: None.

        Raises:
            ValueError: they do not fit.
        """
        rows, columns = source.shape
        if first_column != 0 or kept is not None or columns != self.shape[1]:
            raise ValueError(f"source: expected whole rows of {self.shape[1]} to quantize")
        if not 0 <= first_row <= self.shape[0] - rows:
            raise ValueError(f"source: {rows} rows from {first_row} do not fit")
        codes, scales = quantize_mxfp4(source.cpu())
        taken = slice(first_row, first_row + rows)
        self.data[taken] = _words(codes.to(self.data.device))
        self.scales[taken] = scales.to(self.data.device)

    def fill_group_codes(self, group_codes: GroupCodes, first_row: int = 0) -> None:
        """Never called: weights of integers of a file are CodedWeights."""
        raise AssertionError("this weight is in MXFP4")

    def multiply(
        self,
        ops: Products,
        out: torch.Tensor,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        starts: torch.Tensor | None = None,
    ) -> None:
        """See MultipliedMatrix.multiply; only experts are in MXFP4."""
        assert starts is not None, "only experts are in MXFP4"
        ops.expert_linear(out, x, self.data, self.scales, starts, bias)

    def look_up(self, ops: Products, out: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Never called: no embedding is in MXFP4."""
        raise AssertionError("only experts are in MXFP4")


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Return the words of rows of codes, int8 [n, K], as uint8 [n, ceil(K / 32), 16]."""
    rows, columns = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -columns % GROUP_COLUMNS)).int()
    # Even codes of a word are in its lower half.
    codes = padded.view(rows, -1, _GROUP_WORDS, _WORD_CODES // 2, 2)
    signs, magnitudes = (
        torch.tensor(bits, dtype=torch.int32, device=codes.device)[:, None]
        for bits in (_SIGN_BITS, _MAGNITUDE_BITS)
    )
    halves = ((codes >> 3 << signs) + ((codes & 7) << magnitudes)).sum(3)
    return halves.to(torch.int16).view(torch.uint8).flatten(2)

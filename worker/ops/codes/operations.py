"""The operations of a GPU on weights of codes; a row's bits do not depend on its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Kernels copy rows by so many bytes.
_ALIGNMENT = 16


class CodedTensors(NamedTuple):
    """A weight [N, K] of codes as the kernels take it.

    Attributes:
        data: [panels, steps, bytes of a step], int8, or uint8 for codes of 4 bits and E4M3.
        scales: float32 [N], or of groups [panels, groups, 1 or 2, 32]: scales, and then offsets.
        num_experts: E, whose matrices of N / E rows lie below each other.
        cols: N / E.
        group: inputs that share a scale; 0: all.
        takes_int8: it multiplies activations that become int8.
    """

    data: Tensor
    scales: Tensor
    num_experts: int
    cols: int
    group: int
    takes_int8: bool


class CodedOps:
    """Products with weights of codes, and rows of them; stateless.

    Codes are multiplied exactly in the dtype of the activations, bfloat16 or float16; sums are in float32,
    and scales multiply those of their groups. Where activations become int8, sums are exact.

    Args:
        library: a tvm_ffi.Module that exports the kernels.

    Attributes:
        shared_bytes: shared memory that a thread block of the products takes, at most, as
            csrc/cuda/coded_linear.cuh says, too.
    """

    shared_bytes = 148_480

    def __init__(self, library: Any) -> None:
        self._linear = library.coded_linear
        self._dense = library.coded_dense
        self._embedding = library.coded_embedding
        self._code_rows = library.code_rows

    def linear(
        self,
        out: Tensor,
        x: Tensor,
        weight: CodedTensors,
        bias: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> None:
        """See Kernels.linear and, with starts, ExpertOps.linear."""
        data, scales, num_experts, cols, group, takes_int8 = weight
        row_scales = None
        if takes_int8:
            x, row_scales = self.code_rows(x)
        elif not _is_aligned(x):
            x = _spaced(x, x.dtype).copy_(x)
        self._linear(out, x, row_scales, data, scales, num_experts, cols, group, starts, bias)

    def embedding(self, out: Tensor, token_ids: Tensor, weight: CodedTensors) -> None:
        """See Kernels.embedding; the weight is not for activations of int8."""
        self._embedding(out, token_ids, weight.data, weight.scales, weight.cols, weight.group)

    def dense(self, out: Tensor, weight: CodedTensors) -> None:
        """Write the weight of one expert, not for activations of int8, to `out` [N, K] in its dtype."""
        self._dense(out, weight.data, weight.scales, weight.group)

    def code_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [T, K] as int8, multiples of their largest magnitudes over 127, and these scales [T].

        A row that holds what is no finite number has the scale NaN or infinity.
        """
        codes = _spaced(x, torch.int8)
        scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
        self._code_rows(codes, scales, x)
        return codes, scales


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % _ALIGNMENT == 0 and x.stride(0) * x.element_size() % _ALIGNMENT == 0


def _spaced(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for as many elements, whose rows begin where kernels can copy them from."""
    multiple = _ALIGNMENT // dtype.itemsize
    padded = -(-x.shape[1] // multiple) * multiple
    return torch.empty(len(x), padded, dtype=dtype, device=x.device)[:, : x.shape[1]]

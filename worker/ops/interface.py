"""What layers, sampler and host tier ask of a device's kernels; worker.ops.cpu describes each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


class VocabularyPart(NamedTuple):
    """Which rows of a vocabulary a weight holds: as many as it has, from `first` on, of `vocab_size`."""

    first: int
    vocab_size: int


class Matrix(Protocol):
    """A weight [N, K] in the form in which one device's kernels read it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""

    def fill(
        self, source: Tensor, first_row: int = 0, first_column: int = 0, kept: range | None = None
    ) -> None:
        """Write a rectangle.

        Args:
            source: [n, k], of any strides and dtype, on the CPU or the matrix's device; not kept.
            first_row: row of the matrix where its first element belongs.
            first_column: its column.
            kept: columns of source that belong to the matrix, where the others count for int8's scales only;
                None for all.
        """


MatrixT_contra = TypeVar("MatrixT_contra", bound=Matrix, contravariant=True)


class Kernels(Protocol[MatrixT_contra]):
    """The operations that devices have in common; worker.ops.cpu and worker.ops.cuda.CudaOps are two.

    Kernels that read or write the KV cache are not among them: its layout is the attention backend's affair.
    """

    def rms_norm(self, out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None: ...

    def fused_add_rms_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> None: ...

    def layer_norm(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None: ...

    def fused_add_layer_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> None: ...

    def silu_and_mul(self, out: Tensor, x: Tensor) -> None: ...

    def gelu(self, out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> None: ...

    def sum_parts(self, out: Tensor, parts: Tensor, bias: Tensor | None = None, first: int = 0) -> None: ...

    def move_blocks(self, pool: Tensor, host: Tensor, moves_from: Tensor, moves_to: Tensor) -> None: ...

    def linear(self, out: Tensor, x: Tensor, weight: MatrixT_contra, bias: Tensor | None = None) -> None: ...

    def embedding(
        self, out: Tensor, token_ids: Tensor, weight: MatrixT_contra, part: VocabularyPart | None = None
    ) -> None: ...

    def apply_penalties(
        self,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
        history_rows: Tensor,
        prompt_lens: Tensor,
        total_lens: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
    ) -> None: ...

    def edit_logits(
        self, logits: Tensor, rows: Tensor, cu_edits: Tensor, token_ids: Tensor, values: Tensor
    ) -> None: ...

    def sample(
        self,
        out_token_ids: Tensor,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seeds: Tensor,
        positions: Tensor,
        masks: Tensor | None = None,
        mask_rows: Tensor | None = None,
    ) -> None: ...

    def top_logprobs(
        self,
        out_ids: Tensor,
        out_logprobs: Tensor,
        out_ranks: Tensor,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
    ) -> None: ...

    def token_logprobs(
        self, out: Tensor, logits: Tensor, rows: Tensor, cu_tokens: Tensor, token_ids: Tensor
    ) -> None: ...

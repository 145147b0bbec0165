"""The operations of latent attention: one cached row per token is the key and the value of all heads.

T: tokens, Hq: query heads, C: size of the latent, R: of the rotary key; both are multiples of 32, up to 512
and 128. Errors, dtypes and strides: see worker.ops.interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from splitserve.worker.ops.matrix import MatrixT_contra

if TYPE_CHECKING:
    from torch import Tensor


class LatentOps(ABC, Generic[MatrixT_contra]):
    """The operations of one kernel library; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._write = library.latent_write
        self._attend = library.latent_attention

    def write(
        self,
        q: Tensor,
        latents: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
        norm: Tensor,
        eps: float,
    ) -> None:
        """Write the norms of latents and the rotated keys into the cache, and rotate the ends of queries.

        Args:
            q: [T, Hq, R], in place; also of tokens whose slot is negative. Element i turns with i + R / 2.
            latents: [T, C + R], not changed.
            positions: int32 or int64 [T], each below max_pos.
            cos_sin: float32 [max_pos, R]: cosines, then sines.
            cache: [num_blocks, 1, block_size, C + R], with rows of tokens; or on a CPU, with activations of
                bfloat16, codes: uint8 of E4M3, or int8 [num_blocks, 1, block_size, C + R + 4], whose rows end
                with the bfloat16 scales of latent and rotary key.
            slot_mapping: int32 or int64 [T]: block * block_size + offset; nothing is written for a negative
                one.
            norm: [C], weights of the RMS norm of latents.
            eps: added to the mean square.
        """
        self._write(q, latents, positions, cos_sin, cache, slot_mapping, norm, eps)

    def attend(
        self,
        out: Tensor,
        q_latent: Tensor,
        q_rotary: Tensor,
        cache: Tensor,
        rows: tuple[Tensor, Tensor, Tensor],
        scale: float,
    ) -> None:
        """Causal attention of prefill, chunk and decode rows: sums of latents by the softmax of the scores.

        Args:
            out: [T, Hq, C]; may be q_latent.
            q_latent: like out, multiplied with latents.
            q_rotary: [T, Hq, R], multiplied with rotary keys.
            cache: as write() leaves it; this step's tokens are already in it.
            rows: block_tables, cu_seqlens_q and seq_lens as for CpuOps.paged_attention. On a GPU a block that
                is not there reads as zeros.
            scale: multiplies the sum of both products.
        """
        self._attend(out, q_latent, q_rotary, cache, *rows, scale)

    @abstractmethod
    def multiply_heads(self, out: Tensor, x: Tensor, weight: MatrixT_contra) -> None:
        """Multiply each head with a matrix of its own: out[:, h] = x[:, h] @ weight[h].T.

        Args:
            out: [T, Hq, N], dtype of x.
            x: [T, Hq, K], dtype of the weight.
            weight: [Hq * N, K], made for Hq heads, not quantized.
        """

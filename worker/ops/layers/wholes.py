"""The operations of encoders' attention: within whole sequences, without a cache.

T: tokens, Hq and Hkv: query and KV heads, D: head size, R: sequences. Errors, dtypes and strides: see
worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class WholeOps:
    """The operations of one kernel library; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._attend = library.whole_attention
        self._rotate = library.rotate_heads

    def attend(
        self,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        scale: float,
        reach: int = 0,
    ) -> None:
        """Attention within sequences: a token sees those before and behind it.

        On a GPU rows of heads begin at multiples of 16 bytes.

        Args:
            out: [T, Hq, D], D a multiple of 8 up to 256.
            q: like out.
            k: [T, Hkv, D].
            v: like k, with the same strides.
            cu_seqlens: int32 [R + 1]: sequence r is rows cu_seqlens[r] to cu_seqlens[r + 1].
            scale: multiplies the scores.
            reach: a token sees this many positions to either side of its own; 0: all.
        """
        self._attend(out, q, k, v, cu_seqlens, scale, reach)

    def rotate(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """Rotate queries or keys, as rotary_kv_write does, where there is no cache to write to.

        Args:
            x: [T, Hs, D], in place.
            positions: int32 or int64 [T], each below max_pos.
            cos_sin: float32 [max_pos, rot_dim], rot_dim <= D.
        """
        self._rotate(x, positions, cos_sin)

"""The kernels of csrc/cuda: the operations of worker.ops on tensors of a CUDA device.

Names, arguments, shapes and results are those of worker.ops, which describes them. What differs:

* Activations may be float16, too.
* A call enqueues work on torch's current stream of the tensors' device and returns. It neither allocates nor
  waits, so it can be captured in a CUDA graph.
* Ids live on the device, where no exception can be raised. A token id outside the vocabulary and a position
  outside the table give NaN, which the sampler reports as that row's error; a slot outside the cache is
  skipped.
* A norm's row is at most 64 KiB long.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from worker._native import load_library

if TYPE_CHECKING:
    from torch import Tensor


@cache
def cuda_ops() -> CudaOps:
    """Return the operations of the installed CUDA library, loaded once; no GPU is needed for that.

    Raises:
        ImportError: the library was not built, because there was no nvcc.
    """
    return CudaOps(load_library("splitserve_cuda"))


class CudaOps:
    """The operations of one kernel library; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._device_count = library.device_count
        self._rms_norm = library.rms_norm
        self._fused_add_rms_norm = library.fused_add_rms_norm
        self._layer_norm = library.layer_norm
        self._fused_add_layer_norm = library.fused_add_layer_norm
        self._rotary_embedding = library.rotary_embedding
        self._rotary_kv_write = library.rotary_kv_write
        self._silu_and_mul = library.silu_and_mul
        self._gelu = library.gelu
        self._kv_write = library.kv_write
        self._move_blocks = library.move_blocks
        self._embedding = library.embedding

    def device_count(self) -> int:
        """CUDA devices of this machine; 0 without a driver."""
        return int(self._device_count())

    def rms_norm(self, out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        """See worker.ops.rms_norm."""
        self._rms_norm(out, x, weight, eps)

    def fused_add_rms_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> None:
        """See worker.ops.fused_add_rms_norm."""
        self._fused_add_rms_norm(out, x, residual, weight, eps)

    def layer_norm(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
        """See worker.ops.layer_norm."""
        self._layer_norm(out, x, weight, bias, eps)

    def fused_add_layer_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> None:
        """See worker.ops.fused_add_layer_norm."""
        self._fused_add_layer_norm(out, x, residual, weight, bias, eps)

    def rotary_embedding(self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """See worker.ops.rotary_embedding."""
        self._rotary_embedding(q, k, positions, cos_sin)

    def rotary_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """See worker.ops.rotary_kv_write."""
        self._rotary_kv_write(q, k, v, positions, cos_sin, k_cache, v_cache, slot_mapping)

    def silu_and_mul(self, out: Tensor, x: Tensor) -> None:
        """See worker.ops.silu_and_mul."""
        self._silu_and_mul(out, x)

    def gelu(self, out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> None:
        """See worker.ops.gelu."""
        self._gelu(out, x, approximate)

    def kv_write(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """See worker.ops.kv_write."""
        self._kv_write(k, v, k_cache, v_cache, slot_mapping)

    def move_blocks(self, pool: Tensor, host: Tensor, moves_from: Tensor, moves_to: Tensor) -> None:
        """See worker.ops.move_blocks.

        The moves lie in the CPU's memory and are read at once. host is pinned, and is written when the stream
        comes to it.
        """
        self._move_blocks(pool, host, moves_from, moves_to)

    def embedding(self, out: Tensor, token_ids: Tensor, weight: Tensor) -> None:
        """Copy rows: out[t] = weight[token_ids[t]].

        Args:
            out: [T, H].
            token_ids: int32 or int64 [T].
            weight: [V, H].
        """
        self._embedding(out, token_ids, weight)

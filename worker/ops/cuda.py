"""The kernels of csrc/cuda: the operations of worker.ops.cpu on tensors of a CUDA device.

Names, arguments, shapes and results are those of worker.ops.cpu, which describes them. What differs:

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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from splitserve.worker._native import load_library

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.dense_weight import DenseWeight
    from splitserve.worker.ops.interface import VocabularyPart


@cache
def cuda_ops() -> CudaOps:
    """Return the operations of the installed CUDA library, loaded once; no GPU is needed for that.

    Raises:
        ImportError: the library was not built, because there was no GPU or no nvcc.
    """
    return CudaOps(load_library("splitserve_cuda"))


class AttentionShape(NamedTuple):
    """What bounds the attention of a step.

    Attributes:
        tokens: rows of q, or more.
        heads: query heads.
        kv_heads: KV heads.
        max_seq_len: longest context.
    """

    tokens: int
    heads: int
    kv_heads: int
    max_seq_len: int


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
        self._rotary_kv_write = library.rotary_kv_write
        self._silu_and_mul = library.silu_and_mul
        self._gelu = library.gelu
        self._kv_write = library.kv_write
        self._move_blocks = library.move_blocks
        self._sum_parts = library.sum_parts
        self._embedding = library.embedding
        self._attention_plan_size = library.attention_plan_size
        self._attention_shared_bytes = library.attention_shared_bytes
        self._shared_bytes_limit = library.shared_bytes_limit
        self._plan_attention = library.plan_attention
        self._paged_attention = library.paged_attention
        self._apply_penalties = library.apply_penalties
        self._edit_logits = library.edit_logits
        self._sample = library.sample
        self._top_logprobs = library.top_logprobs
        self._token_logprobs = library.token_logprobs

    def device_count(self) -> int:
        """CUDA devices of this machine; 0 without a driver."""
        return int(self._device_count())

    def rms_norm(self, out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        """See worker.ops.cpu.rms_norm."""
        self._rms_norm(out, x, weight, eps)

    def fused_add_rms_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> None:
        """See worker.ops.cpu.fused_add_rms_norm."""
        self._fused_add_rms_norm(out, x, residual, weight, eps)

    def layer_norm(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
        """See worker.ops.cpu.layer_norm."""
        self._layer_norm(out, x, weight, bias, eps)

    def fused_add_layer_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> None:
        """See worker.ops.cpu.fused_add_layer_norm."""
        self._fused_add_layer_norm(out, x, residual, weight, bias, eps)

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
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """See worker.ops.cpu.rotary_kv_write; k is not changed."""
        self._rotary_kv_write(
            q, k, v, positions, cos_sin, k_cache, v_cache, slot_mapping, q_norm, k_norm, eps
        )

    def silu_and_mul(self, out: Tensor, x: Tensor) -> None:
        """See worker.ops.cpu.silu_and_mul."""
        self._silu_and_mul(out, x)

    def gelu(self, out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> None:
        """See worker.ops.cpu.gelu."""
        self._gelu(out, x, approximate)

    def sum_parts(self, out: Tensor, parts: Tensor, bias: Tensor | None = None, first: int = 0) -> None:
        """See worker.ops.cpu.sum_parts."""
        self._sum_parts(out, parts, bias, first)

    def kv_write(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """See worker.ops.cpu.kv_write."""
        self._kv_write(k, v, k_cache, v_cache, slot_mapping)

    def move_blocks(self, pool: Tensor, host: Tensor, moves_from: Tensor, moves_to: Tensor) -> None:
        """See worker.ops.cpu.move_blocks.

        The moves lie in the CPU's memory and are read at once. host is pinned, and is written when the stream
        comes to it.
        """
        self._move_blocks(pool, host, moves_from, moves_to)

    def linear(self, out: Tensor, x: Tensor, weight: DenseWeight, bias: Tensor | None = None) -> None:
        """See worker.ops.cpu.linear; torch's matrix product, whose order of summation may depend on T.

        `out` has another dtype than x only without a bias.
        """
        turned = weight.data.t()
        if bias is not None:
            torch.addmm(bias, x, turned, out=out)
        elif out.dtype == x.dtype:
            torch.mm(x, turned, out=out)
        else:
            torch.mm(x, turned, out_dtype=out.dtype, out=out)

    def embedding(
        self, out: Tensor, token_ids: Tensor, weight: DenseWeight, part: VocabularyPart | None = None
    ) -> None:
        """See worker.ops.cpu.embedding."""
        if part is None:
            self._embedding(out, token_ids, weight.data)
            return
        places = token_ids - part.first
        is_elsewhere = (places < 0) | (places >= weight.shape[0])
        self._embedding(out, places.masked_fill_(is_elsewhere, 0), weight.data)
        # Not by index: that would wait for the device to learn how many there are.
        out.masked_fill_(is_elsewhere[:, None], 0)

    def attention_plan_size(
        self, tokens: int, requests: int, heads: int, kv_heads: int, head_dim: int, max_seq_len: int
    ) -> int:
        """Elements of a plan for at most so many tokens and requests, of at most max_seq_len tokens each."""
        return int(self._attention_plan_size(tokens, requests, heads, kv_heads, head_dim, max_seq_len))

    def attention_shared_bytes(self, head_dim: int) -> int:
        """Shared memory that a thread block of paged_attention takes in bfloat16 and float16."""
        return int(self._attention_shared_bytes(head_dim))

    def shared_bytes_limit(self, device: int) -> int:
        """Shared memory that a thread block may have on the device of this number."""
        return int(self._shared_bytes_limit(device))

    def plan_attention(
        self,
        plan: Tensor,
        partials: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        shape: AttentionShape,
        sliding_window: int = 0,
    ) -> None:
        """Divide a step's attention among the device's processors, once for all layers with the same window.

        A request with few query rows over a long context is split at multiples of 1024 positions, as long as
        its partial results fit into `partials`; that changes the speed and no bit of the results.

        Args:
            plan: int32 [attention_plan_size(...)], overwritten.
            partials: float32 [any, 4 + D], room for partial results: per segment one row for each query row
                of the requests that split; contiguous.
            cu_seqlens_q: int32 [R + 1], as for paged_attention.
            seq_lens: int32 [R]; a request with an impossible length is left out.
            shape: bounds of the step.
            sliding_window: as for paged_attention.
        """
        self._plan_attention(
            plan,
            partials,
            cu_seqlens_q,
            seq_lens,
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            shape.max_seq_len,
            sliding_window,
        )

    def paged_attention(
        self,
        out: Tensor,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        scale: float,
        sliding_window: int = 0,
        softcap: float = 0.0,
        *,
        plan: Tensor,
        partials: Tensor,
    ) -> None:
        """See worker.ops.cpu.paged_attention, whose arguments come first.

        The caches have the same strides; their rows begin at multiples of 16 bytes, those of q and out at
        multiples of 4. A block outside the cache reads as zeros. `plan` is one by plan_attention for these
        lengths, heads and window, and `partials` the tensor that it was made with, which is overwritten. One
        stream at a time may use them.
        """
        self._paged_attention(
            out,
            q,
            k_cache,
            v_cache,
            block_tables,
            cu_seqlens_q,
            seq_lens,
            scale,
            sliding_window,
            softcap,
            plan,
            partials,
        )

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
    ) -> None:
        """See worker.ops.cpu.apply_penalties; rows that are not there are skipped."""
        self._apply_penalties(
            logits, rows, token_ids, history_rows, prompt_lens, total_lens, repetition, frequency, presence
        )

    def edit_logits(
        self, logits: Tensor, rows: Tensor, cu_edits: Tensor, token_ids: Tensor, values: Tensor
    ) -> None:
        """See worker.ops.cpu.edit_logits; rows and tokens that are not there are skipped."""
        self._edit_logits(logits, rows, cu_edits, token_ids, values)

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
    ) -> None:
        """See worker.ops.cpu.sample; V is at most 2^22. A row of masks that is missing allows all tokens."""
        self._sample(
            out_token_ids, logits, temperature, top_k, top_p, min_p, seeds, positions, masks, mask_rows
        )

    def top_logprobs(
        self,
        out_ids: Tensor,
        out_logprobs: Tensor,
        out_ranks: Tensor,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
    ) -> None:
        """See worker.ops.cpu.top_logprobs; k is at most 1024. A missing row or token counts as NaN."""
        self._top_logprobs(out_ids, out_logprobs, out_ranks, logits, rows, token_ids)

    def token_logprobs(
        self, out: Tensor, logits: Tensor, rows: Tensor, cu_tokens: Tensor, token_ids: Tensor
    ) -> None:
        """See worker.ops.cpu.token_logprobs; a row or token that is not there gives NaN."""
        self._token_logprobs(out, logits, rows, cu_tokens, token_ids)

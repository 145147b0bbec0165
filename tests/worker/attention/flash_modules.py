"""Stand-ins for the three flash-attn packages: their signatures, computed in plain torch.

Those of flash-attn 2.8.3.post2, of flash-attn-4 4.0.0b36, and, as no package of FlashAttention 3 is
published, of hopper/flash_attn_interface.py in the sources of 15 August 2026. A test compares them with what
is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Flash2:
    """`flash_attn`: pages of 256 tokens, context lengths as a running sum."""

    @staticmethod
    def flash_attn_varlen_func(  # type: ignore[no-untyped-def]
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ) -> Tensor:
        assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        assert cu_seqlens_k.dtype == cu_seqlens_q.dtype == torch.int32
        lengths = cu_seqlens_k.diff()
        assert (max_seqlen_q, max_seqlen_k) >= (int(cu_seqlens_q.diff().max()), int(lengths.max()))
        window = None if window_size == (-1, -1) else window_size[0]
        return attend(q, k, v, cu_seqlens_q, lengths, block_table, softmax_scale, causal, window)


class Flash3:
    """`flash_attn_interface`: pages in flash_attn_with_kvcache only."""

    @staticmethod
    def flash_attn_with_kvcache(  # type: ignore[no-untyped-def]
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        qv=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens=None,
        cache_batch_idx=None,
        cache_leftpad=None,
        page_table=None,
        cu_seqlens_q=None,
        cu_seqlens_k_new=None,
        max_seqlen_q=None,
        rotary_seqlens=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        rotary_interleaved=True,
        scheduler_metadata=None,
        num_splits=0,
        pack_gqa=None,
        sm_margin=0,
        return_softmax_lse=False,
    ) -> Tensor:
        assert max_seqlen_q >= int(cu_seqlens_q.diff().max())
        window = None if window_size == (-1, -1) else window_size[0]
        return attend(
            q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale, causal, window
        )


class Flash4:
    """`flash_attn.cute`: arguments in another order, None for no window, and a pair returned."""

    @staticmethod
    def flash_attn_varlen_func(  # type: ignore[no-untyped-def]
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        score_mod=None,
        score_mod_bwd=None,
        mask_mod=None,
        block_sparse_tensors=None,
        aux_tensors=None,
        aux_scalars=None,
        return_lse=False,
        scheduler_metadata=None,
        seqlen_k_per_split=None,
        disable_scheduler_metadata=False,
        gather_bwd_recompute_p=False,
        gather_bwd_token_chunk=None,
    ) -> tuple[Tensor, None]:
        assert q.shape[-1] % 16 == 0, "Paged KV does not support irregular head dim"
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert page_table.shape[0] == len(cu_seqlens_q) - 1
        assert seqused_k.dtype == cu_seqlens_q.dtype == page_table.dtype == torch.int32
        assert max_seqlen_k >= int(seqused_k.max())
        window = window_size[0]
        return attend(q, k, v, cu_seqlens_q, seqused_k, page_table, softmax_scale, causal, window), None


def attend(  # type: ignore[no-untyped-def]
    q, k, v, cu_seqlens_q, lengths, tables, scale, causal, window
) -> Tensor:
    """Attention row by row, by torch's own kernel; k and v are [num_pages, page_size, Hkv, D].

    As in the packages, what lies before a window is read and gets weight 0.
    """
    assert causal
    out = torch.empty_like(q)
    ends = cu_seqlens_q.tolist()
    for row, length in enumerate(lengths.tolist()):
        span = slice(ends[row], ends[row + 1])
        pages = tables[row, : -(-length // k.shape[1])].long()
        keys, values = (x[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for x in (k, v))
        position = torch.arange(length, device=q.device)
        distance = position[length - (span.stop - span.start) :, None] - position
        mask = (distance >= 0) & (distance <= (length if window is None else window))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[span].transpose(0, 1)[None], keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[span] = attended[0].transpose(0, 1)
    return out


MODULES: dict[str, Any] = {"flash_attn": Flash2, "flash_attn_interface": Flash3, "flash_attn.cute": Flash4}
"""By what is imported."""

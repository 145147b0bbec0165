"""Which FlashAttention package can be used: what each supports, how to call it, and whether it works."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.needs import AttentionNeeds

# Most characters shown of a package's own error; a compiler's can run to pages.
_MAX_REASON = 200


class Paged(NamedTuple):
    """The paged keys and values of one attention call.

    Attributes:
        k, v: [num_blocks, block_size, Hkv, D].
        meta: layout of the step.
        scale: multiplies the scores.
        window: tokens that a query sees before its own; -1 = no window.
    """

    k: torch.Tensor
    v: torch.Tensor
    meta: AttentionMetadata
    scale: float
    window: int

    def max_queries(self, q: torch.Tensor) -> int:
        """Upper bound on the tokens of any row; each has at least one, so no device sync is needed."""
        return len(q) - len(self.meta.seq_lens) + 1

    @property
    def max_keys(self) -> int:
        """Upper bound on the positions of any row."""
        return self.meta.block_tables.shape[1] * self.k.shape[1]


Attend = Callable[[torch.Tensor, Paged], torch.Tensor]
"""(q [T, Hq, D], cache) -> [T, Hq, D]; causal, aligned to the end of each row."""


class Edition(NamedTuple):
    """One of the FlashAttention packages.

    Attributes:
        name: for the log.
        module: name of the module to import.
        majors: major compute capabilities it has paged kernels for.
        block_multiple: page sizes must be multiples of this.
        head_multiple: head sizes must be multiples of this.
        adapt: wraps the imported module as an Attend function.
    """

    name: str
    module: str
    majors: tuple[int, ...]
    block_multiple: int
    head_multiple: int
    adapt: Callable[[Any], Attend]


def _adapt_2(module: Any) -> Attend:
    """FlashAttention 2 takes the context lengths as a cumulative sum."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        cu_seqlens_k = torch.nn.functional.pad(meta.seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
        out: torch.Tensor = module.flash_attn_varlen_func(
            q,
            cache.k,
            cache.v,
            cu_seqlens_q=meta.cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=cache.max_queries(q),
            max_seqlen_k=cache.max_keys,
            softmax_scale=cache.scale,
            causal=True,
            window_size=(cache.window, -1 if cache.window < 0 else 0),
            block_table=meta.block_tables,
        )
        return out

    return attend


def _adapt_3(module: Any) -> Attend:
    """FlashAttention 3 supports paged caches only in flash_attn_with_kvcache."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        out: torch.Tensor = module.flash_attn_with_kvcache(
            q,
            cache.k,
            cache.v,
            cache_seqlens=meta.seq_lens,
            page_table=meta.block_tables,
            cu_seqlens_q=meta.cu_seqlens_q,
            max_seqlen_q=cache.max_queries(q),
            softmax_scale=cache.scale,
            causal=True,
            window_size=(cache.window, -1 if cache.window < 0 else 0),
        )
        return out

    return attend


def _adapt_4(module: Any) -> Attend:
    """FlashAttention 4 takes None for no window, and also returns the log-sum-exp."""

    def attend(q: torch.Tensor, cache: Paged) -> torch.Tensor:
        meta = cache.meta
        out: torch.Tensor
        out, _ = module.flash_attn_varlen_func(
            q,
            cache.k,
            cache.v,
            cu_seqlens_q=meta.cu_seqlens_q,
            max_seqlen_q=cache.max_queries(q),
            max_seqlen_k=cache.max_keys,
            seqused_k=meta.seq_lens,
            page_table=meta.block_tables,
            softmax_scale=cache.scale,
            causal=True,
            window_size=(None, None) if cache.window < 0 else (cache.window, 0),
        )
        return out

    return attend


# In order of preference: on Hopper, version 3 splits a long context over the multiprocessors and version 4
# does not. As of flash-attn 2.8.3.post2, flash-attn-4 4.0.0b36, and version 3's sources of 15 August 2026.
EDITIONS = (
    Edition("FlashAttention 3", "flash_attn_interface", (8, 9), 1, 8, _adapt_3),
    Edition("FlashAttention 4", "flash_attn.cute", (9, 10, 11), 1, 16, _adapt_4),
    Edition("FlashAttention 2", "flash_attn", (8, 9, 10, 12), 256, 8, _adapt_2),
)


class Found(NamedTuple):
    """A usable edition, or the reason why there is none."""

    name: str = ""
    attend: Attend | None = None
    reason: str = ""


def find_edition(major: int, needs: AttentionNeeds, device: torch.device) -> Found:
    """Return the first edition that is installed, suitable and passes a trial call; see open_edition."""
    reasons = []
    for edition in EDITIONS:
        if major not in edition.majors:
            continue
        found = open_edition(edition, needs, device)
        if found.attend is not None:
            return found
        reasons.append(found.reason)
    return Found(
        reason="; ".join(reasons) or f"no edition has paged kernels for compute capability {major}.x"
    )


def open_edition(edition: Edition, needs: AttentionNeeds, device: torch.device) -> Found:
    """Import an edition and try it, unless it is known not to support what is needed.

    The module installed under its name may be another version, built for other GPUs, or part of another
    edition (version 4 alone leaves an empty `flash_attn`). Only a trial call tells; it also triggers any
    compilation at first use.

    Args:
        edition: one of EDITIONS.
        needs: what the model requires.
        device: the GPU to run on, with one of the edition's compute capabilities.
    """
    reason = _lacks(edition, needs)
    if reason:
        return Found(edition.name, reason=f"{edition.name} {reason}")
    try:
        attend = edition.adapt(importlib.import_module(edition.module))
        _try(attend, needs, device)
    # Whatever a package raises, from an assertion to a compiler error, is a reason not to use it.
    except Exception as error:
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        return Found(
            edition.name, reason=f"{edition.name}: {kind}{' '.join(str(error).split())[:_MAX_REASON]}"
        )
    return Found(edition.name, attend)


def _lacks(edition: Edition, needs: AttentionNeeds) -> str:
    if needs.block_size % edition.block_multiple:
        return f"needs --block-size {edition.block_multiple}"
    if needs.head_dim % edition.head_multiple:
        return f"has pages for heads of a multiple of {edition.head_multiple}, not of {needs.head_dim}"
    return ""


def _try(attend: Attend, needs: AttentionNeeds, device: torch.device) -> None:
    """Attend to values that are 1 up to each row's end and 0 after it, so every result must be 1.

    Raises:
        RuntimeError: a result is not 1; or whatever the package raises.
    """
    size = needs.block_size
    q = torch.zeros(3, needs.num_heads, needs.head_dim, dtype=needs.dtype, device=device)
    k, v = torch.zeros(2, 3, size, needs.num_kv_heads, needs.head_dim, dtype=needs.dtype, device=device)
    # A chunk of two tokens, and one token after a full block.
    lengths, tables, cu_seqlens_q = (
        torch.tensor(values, dtype=torch.int32, device=device)
        for values in ([2, size + 1], [[1, 0], [2, 0]], [0, 2, 3])
    )
    v[1, :2] = v[2] = v[0, :1] = 1
    meta = AttentionMetadata(lengths, lengths, tables, cu_seqlens_q, lengths)
    out = attend(q, Paged(k, v, meta, needs.head_dim**-0.5, -1))
    if not torch.allclose(out.float(), torch.ones_like(out, dtype=torch.float32), atol=0.02):
        raise RuntimeError("a trial call returned a wrong result")

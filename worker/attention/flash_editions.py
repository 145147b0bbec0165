"""Which FlashAttention can be used: what each package has pages for, how it is called, whether it works."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.needs import AttentionNeeds

# Characters of a package's own error that are shown; a compiler's may fill pages.
_MAX_REASON = 200


class Paged(NamedTuple):
    """What one call attends to.

    Attributes:
        k, v: [num_blocks, block_size, Hkv, D].
        meta: layout of the step.
        scale: factor of the scores.
        window: tokens that a query sees before its own; -1 for all.
    """

    k: torch.Tensor
    v: torch.Tensor
    meta: AttentionMetadata
    scale: float
    window: int

    def max_queries(self, q: torch.Tensor) -> int:
        """No row of q has more tokens: each has at least one, which tells without asking the device."""
        return len(q) - len(self.meta.seq_lens) + 1

    @property
    def max_keys(self) -> int:
        """No row has more positions."""
        return self.meta.block_tables.shape[1] * self.k.shape[1]


Attend = Callable[[torch.Tensor, Paged], torch.Tensor]
"""(q [T, Hq, D], cache) -> [T, Hq, D]; strict causality, aligned to the end of each row."""


class Edition(NamedTuple):
    """One of the packages.

    Attributes:
        name: for the log.
        module: what is imported.
        majors: first digits of the compute capabilities it has paged kernels for.
        block_multiple: its page sizes are multiples of this.
        head_multiple: so are its head sizes.
        adapt: makes the call from the module.
    """

    name: str
    module: str
    majors: tuple[int, ...]
    block_multiple: int
    head_multiple: int
    adapt: Callable[[Any], Attend]


def _adapt_2(module: Any) -> Attend:
    """FlashAttention 2 takes the context lengths as their running sum."""

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
    """FlashAttention 3 reads pages in flash_attn_with_kvcache only."""

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
    """FlashAttention 4 says None where there is no window, and also returns the softmax's logarithms."""

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


# In order of preference: on Hopper the third splits a long context over the GPU's processors, the fourth does
# not. As of flash-attn 2.8.3.post2, flash-attn-4 4.0.0b36, and the third's sources of 15 August 2026.
EDITIONS = (
    Edition("FlashAttention 3", "flash_attn_interface", (8, 9), 1, 8, _adapt_3),
    Edition("FlashAttention 4", "flash_attn.cute", (9, 10, 11), 1, 16, _adapt_4),
    Edition("FlashAttention 2", "flash_attn", (8, 9, 10, 12), 256, 8, _adapt_2),
)


class Found(NamedTuple):
    """An edition that can be used, or why none can."""

    name: str = ""
    attend: Attend | None = None
    reason: str = ""


def find_edition(major: int, needs: AttentionNeeds, device: torch.device) -> Found:
    """Return the first edition that is installed, suits and passes a trial call; see open_edition."""
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
    """Import an edition and try it, unless it is known to lack what is needed.

    What is installed under its name may be another version, built for other GPUs, or part of another edition
    (the fourth alone makes an empty `flash_attn`). Only a call tells, which also compiles what is compiled at
    first use.

    Args:
        edition: one of EDITIONS.
        needs: of the model.
        device: that it is to run on, of one of the edition's compute capabilities.
    """
    reason = _lacks(edition, needs)
    if reason:
        return Found(edition.name, reason=f"{edition.name} {reason}")
    try:
        attend = edition.adapt(importlib.import_module(edition.module))
        _try(attend, needs, device)
    # Whatever a package raises, from an assertion to an error of its compiler, is a reason not to use it.
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
    """Attend to values that are 1 up to each row's end and 0 behind it, so that every result is 1.

    Raises:
        RuntimeError: it is not; or whatever the package raises.
    """
    size = needs.block_size
    q = torch.zeros(3, needs.num_heads, needs.head_dim, dtype=needs.dtype, device=device)
    k, v = torch.zeros(2, 3, size, needs.num_kv_heads, needs.head_dim, dtype=needs.dtype, device=device)
    # A chunk of two tokens, and one token behind a full block.
    lengths, tables, cu_seqlens_q = (
        torch.tensor(values, dtype=torch.int32, device=device)
        for values in ([2, size + 1], [[1, 0], [2, 0]], [0, 2, 3])
    )
    v[1, :2] = v[2] = v[0, :1] = 1
    meta = AttentionMetadata(lengths, lengths, tables, cu_seqlens_q, lengths)
    out = attend(q, Paged(k, v, meta, needs.head_dim**-0.5, -1))
    if not torch.allclose(out.float(), torch.ones_like(out, dtype=torch.float32), atol=0.02):
        raise RuntimeError("a trial call returned a wrong result")
